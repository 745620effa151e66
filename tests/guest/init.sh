#!/bin/sh
# The guest's first process: mounts what a node has, runs what was handed in, powers off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONPATH=/opt/site:/project LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /run /tmp /dev/shm /project /root; do mount -t tmpfs tmpfs $folder; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpuset +cpu +memory +pids +io" > /sys/fs/cgroup/cgroup.subtree_control
for disk in /dev/nvme?n?; do  # disks have names in the order in which they were met
    [ -e "${disk}p1" ] || tar -x -f "$disk" -C /project  # of an empty one, nothing
done
ldconfig  # else Python finds no libudev, and the daemon would not hear the kernel
cd /project
# without it runc copies itself into memory for every container, and all of the copy is translated anew
busybox insmod modules/overlay.ko
if [ -e units ]; then  # systemd is to be the machine's first process
    mkdir -p /run/systemd/system
    cp units/* /run/systemd/system
    exec /usr/lib/systemd/systemd --unit=run.service --show-status=false
fi
sh ./run
# a runtime's shims may still hold what they were given; the disk is a snapshot
poweroff -f
