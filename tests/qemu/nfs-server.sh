# programs: exportfs nfsdcld rpc.mountd rpc.nfsd
# modules: virtio_net nfsd
# Runs in the guest: exports the ext4 of /dev/vda by NFS 4 until the machine is killed. It prints "@ exported", or
# "@ failed WHY". A machine with the same disk takes over: the clients of the killed one get their files and locks back.
# At "take" the machine itself overwrites the volume of nfs.sh, as soon as no client has its lock, and says "@ taken".
for module in /modules/*; do insmod "$module"; done
hostname server
ip link set lo up
ip addr add 10.0.0.1/24 dev eth0
ip link set eth0 up
mkdir -p /srv /var/lib/nfs
mount -t ext4 /dev/vda /srv || echo "@ failed to mount"
# Daemons keep their state on the disk: who may claim a lock after a restart.
mkdir -p /srv/state /srv/export /srv/state/nfsdcld
chmod 777 /srv/export
mount -o bind /srv/state /var/lib/nfs
mkdir -p /var/lib/nfs/rpc_pipefs
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
mount -t nfsd nfsd /proc/fs/nfsd
: >>/var/lib/nfs/etab
: >>/var/lib/nfs/rmtab
# A client without an answer connects again late. When all clients have their locks back, they need not wait any longer.
{
    # The kernel looks for the daemon once; without it, no lock survives a restart.
    nfsdcld && until ls -l "/proc/$(pidof nfsdcld)/fd" | grep -q inotify; do usleep 50000; done &&
        echo "/srv/export 10.0.0.0/24(rw,sync,no_subtree_check,no_root_squash,fsid=0)" >/etc/exports &&
        exportfs -r &&
        rpc.mountd --no-nfs-version 3 &&
        rpc.nfsd --no-nfs-version 3 --port 2049 --grace-time 90 --lease-time 10 4 &&
        echo "@ exported"
} 2>/run/errors || echo "@ failed $(cat /run/errors)"
head -c 32 kernel.noise >/run/key
volume="/srv/export/disk --type plain --cipher aes-xts-plain64 --key-size 256 --key-file /run/key"
while read -r line && [ "$line" = take ]; do
    ./blockyard load $volume --allow-short -i kernel.noise 2>/run/refused && echo "@ not locked"
    until ./blockyard load $volume --allow-short -i kernel.noise; do :; done >/run/refused 2>&1
    echo "@ taken"
done
