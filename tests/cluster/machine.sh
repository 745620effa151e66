#!/bin/sh
# A machine for one node: folders, interfaces and kernel settings of its own, in the namespaces that
# this was started in. Says "ready", and lasts until its input ends.
#
#   unshare --mount --net machine.sh FOLDER HARDWARE ADDRESS MOUNT_POINT...
#
# FOLDER gets what the node's programs write to each MOUNT_POINT and to /var/log; HARDWARE has the /sys
# that they see the CPUs and memory of, or is empty; ADDRESS becomes the node's.
set -eu
folder=$1 hardware=$2 address=$3
shift 3

mount --make-rshared /
ip link set lo up
ip address add "$address/32" dev lo

for path in "$@" /var/log; do
    mkdir -p "$folder$path"
    mount --bind "$folder$path" "$path"
done
mount -t tmpfs tmpfs /run

# the kubelet would set these for the whole host
while read -r path value; do
    file=$folder/sysctl/$path
    mkdir -p "${file%/*}"
    echo "$value" > "$file"
    mount --bind "$file" "/proc/sys/$path"
done <<SETTINGS
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS

if [ -n "$hardware" ]; then
    for part in cpu node; do
        mount --bind "$hardware/sys/devices/system/$part" "/sys/devices/system/$part"
    done
fi

echo ready
exec cat > /dev/null
