#!/bin/sh
# The embedded model's voices: two short recordings by flite, kept beside this script, since speech packages
# and their versions differ from machine to machine. Needs flite and sox.
set -eu
out=${1:-$(dirname "$0")/voices}
mkdir -p "$out"
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT

# say VOICE TEXT NAME
say() {
    flite -voice "$1" -t "$2" -o "$part/$3.wav"
    # No dither: the same bytes every time.
    sox -D "$part/$3.wav" -c 1 -b 16 -e signed-integer "$out/$3.wav" gain -n -6 rate -v 24000
}

say slt "Hello, how can I help?" female
say rms "Hello, how can I help?" male
