#!/usr/bin/env bash
# Trains the tiny base model that comes with vtcli, seed 0, and puts it into the package with its manifest. Minutes on two
# cores. Commit the code first: the manifest names the commit. Run by `make tiny-base`.
set -euo pipefail
export VTCLI_HOME=${VTCLI_HOME:-artifacts}
target=$(python -c 'from vtcli.store.models import SHIPPED; print(SHIPPED / "base" / "v1")')

made() { tail -n 1 | cut -f 2; } # a stage prints what it made: NAME:vN, a tab, its folder

common=(+recipe=tiny_base scale=tiny seed=0 tracker=none)
demos=$(vtcli synth name=shipped-demos "${common[@]}" | made)
base=$(vtcli sft name=base "sft.data=$demos" "${common[@]}" | made)
rm -rf "$target"
mkdir -p "$(dirname "$target")"
cp -r "$base" "$target"
chmod -R u+w "$target"
echo "$target: $(du -sh "$target" | cut -f 1), from $base"
