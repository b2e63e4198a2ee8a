#!/bin/sh
# Starts the SuperNode of one site: ./site.sh NAME [PARTITION]
set -eu
cd "$(dirname "$0")"
. ./environment.sh
export FLWR_HOME="$PWD/flower/$1"
mkdir -p "sites/$1"
exec flower-supernode --root-certificates certificates/ca.crt --superlink "$SUPERLINK" \
  --auth-supernode-private-key "nodes/$1.key" --port "${NODE_PORT:-9094}" --node-config \
  "partition-id=${2:-0} num-partitions=@SITES@ site=\"$1\" secede-folder=\"$PWD/sites/$1\""
