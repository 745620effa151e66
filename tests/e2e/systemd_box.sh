# Boots systemd where it can touch nothing of this host: a root folder of its own (LOWER below,
# memory above), and devices, network, processes and cgroups of its own. No unit of the host is in it.
#
#   sh systemd_box.sh BOX CGROUP UNITS RESULTS LOWER
#
# BOX: an empty folder; CGROUP: a new folder of the cgroup2 hierarchy; UNITS: replaces the system's
# units; RESULTS: seen inside as /run/results; LOWER: / or other systems' folders. Ends with 77 where this host cannot do that.
set -eu
box=$1 cgroup=$2 units=$3 results=$4 lower=$5
if [ "${6:-}" != inside ]; then
    mkdir "$cgroup"
    echo $$ >"$cgroup/cgroup.procs"
    exec unshare --fork --pid --kill-child --mount --uts --ipc --net --cgroup sh "$0" "$@" inside
fi

mount --make-rprivate / || exit 77
mount -t tmpfs box "$box" || exit 77
mkdir "$box/upper" "$box/work" "$box/root"
root=$box/root
mount -t overlay box -o "lowerdir=$lower,upperdir=$box/upper,workdir=$box/work" "$root" || exit 77

# From here on everything is written below $root, which is memory; nothing of the host is mounted
# there but $results and a few devices.
for folder in run dev sys; do mount -t tmpfs box "$root/$folder"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 box "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t proc box "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mkdir -p "$root/sys/fs/cgroup"
mount -t cgroup2 box "$root/sys/fs/cgroup" || exit 77
mkdir "$root/run/results"
mount --bind "$results" "$root/run/results"

rm -rf "$root"/usr/lib/systemd/system "$root"/usr/lib/systemd/*-generators
rm -rf "$root"/etc/systemd/system "$root"/etc/systemd/*-generators
cp -r "$units" "$root/etc/systemd/system"
mkdir "$root/old"
cd "$root"
pivot_root . old || exit 77
exec chroot . sh -c 'umount -l /old && exec env container=other /usr/lib/systemd/systemd \
    --system --unit=default.target --log-target=null </dev/null >/dev/null 2>&1'
