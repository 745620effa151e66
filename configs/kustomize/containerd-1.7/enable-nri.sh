#!/bin/sh
# Enables NRI in the configuration of containerd 1.7, and restarts it: containers keep running under
# that. Does nothing where NRI is on already, or containerd is 2 or newer. What was there before stays
# beside it, as config.toml.before-nri-policy.
set -eu

config=${CONTAINERD_CONFIG:-/etc/containerd/config.toml}
restart=${CONTAINERD_RESTART:-systemctl restart containerd}
name='io\.containerd\.nri\.v1\.nri'
header="^ *\[plugins\.[\"']$name[\"']\]"

refuse() {
  echo "enable-nri: $config $1" >&2
  exit 1
}

has() { grep -Eqs "$1" "$config"; }

if has '^ *version *= *3'; then # containerd 2's, which has NRI on
  exit 0
fi
if [ -s "$config" ] && ! has '^ *version *= *2'; then
  refuse 'is of version 1: convert it first, with containerd config migrate'
fi
if has "^ *disabled_plugins *=.*$name"; then
  refuse 'names NRI in disabled_plugins: remove it there'
fi

new=$config.new
if ! has "$header"; then
  {
    if [ -s "$config" ]; then cat "$config"; else echo 'version = 2'; fi
    printf '\n[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n'
  } > "$new"
elif sed -nE "/$header/,/^ *\[/p" "$config" | grep -Eq '^ *disable *='; then
  sed -E "/$header/,/^ *\[/s/^( *disable *= *)true/\1false/" "$config" > "$new"
else
  sed -E "s/$header/&\n  disable = false/" "$config" > "$new"
fi

if cmp -s "$config" "$new"; then
  rm "$new"
  exit 0
fi
if [ -e "$config" ]; then cp -p "$config" "$config.before-nri-policy"; fi
mv "$new" "$config"
echo "enable-nri: enabled NRI in $config: $restart" >&2
$restart
