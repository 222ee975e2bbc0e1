#!/bin/bash
# The first process of the User-Mode Linux kernel that `nfstest boot` starts. The root is the host's, read-only; what is
# written goes to memory, and to the one folder of the host that the kernel's command line names (nfstest_out=).
# As process 1 it also takes in orphans, so it stays while the trials run, and powers off whatever becomes of them.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
for word in $(</proc/cmdline); do
    case $word in
        nfstest_out=*) out=${word#*=} ;;
        nfstest_program=*) program=${word#*=} ;;
    esac
done
mkdir -p /run/out /run/modules/lib
mount -t hostfs none /run/out -o "$out"
exec >/run/out/log 2>&1
echo booted >/run/out/booted

# Debian keeps this kernel's modules where modprobe does not look, neither by hand nor when the kernel calls it.
ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod +x /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe

ip link set lo up
"$program" guest /run/out
echo "guest: exit status $?"
sync
/sbin/poweroff -f
