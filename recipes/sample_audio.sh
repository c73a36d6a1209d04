#!/bin/sh
# The recordings of sample_audio/: customers of a small business, spoken by espeak-ng and flite, and a few
# tones. Each is of another kind. Needs espeak-ng, flite and sox; the same versions give the same bytes.
set -eu
out=${1:-$(dirname "$0")/../sample_audio}
mkdir -p "$out"
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT

# No dither: it would be noise of its own.
mix() {
    sox -D "$@"
}

# question.wav: 24 kHz mono PCM_16, as the model hears it: nothing need be converted.
espeak-ng -v en-us -s 150 -w "$part/question.wav" "Hello, what time do you open tomorrow?"
mix "$part/question.wav" -c 1 -b 16 "$out/question.wav" gain -n -6 rate -v 24000 pad 0.5 1

# telephone.wav: 8 kHz mono mu-law with a telephone's narrow band.
flite -voice awb -t "Hi, is my order ready to be picked up?" -o "$part/telephone.wav"
mix "$part/telephone.wav" -c 1 -e mu-law "$out/telephone.wav" rate -v 8000 sinc 300-3400 gain -n -9 pad 0.3 0.7

# stereo.flac: 44.1 kHz stereo; the customer on the left, a quiet hum on the right.
flite -voice slt -t "Do you have a table for two, please?" -o "$part/customer.wav"
mix "$part/customer.wav" -c 1 "$part/left.wav" gain -n -6 rate -v 44100 pad 0.2 0.5
mix "$part/left.wav" "$part/right.wav" synth sine 120 gain -40
mix -M "$part/left.wav" "$part/right.wav" --comment "" -b 16 "$out/stereo.flac"

# tones.wav: 48 kHz mono PCM_24; three plucked tones that enter one after another, no speech at all.
mix -n -r 48000 -c 1 -b 24 "$out/tones.wav" synth 1.5 pluck A3 pluck C#4 pluck E4 delay 0 0.3 0.6 \
    remix - fade 0.02 1.5 0.2 gain -n -6
