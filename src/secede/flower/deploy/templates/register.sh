#!/bin/sh
# Makes the sites' public keys known to the running SuperLink; before a site starts.
set -eu
cd "$(dirname "$0")"
. ./environment.sh
for key in nodes/*.pub; do
  flwr supernode register "$key" @CONNECTION@ --name "$(basename "$key" .pub)"
done
