# Runs in a guest with two NUMA nodes, the CPUs 0 and 1, and 2 and 3: serves the LUKS2 volume /dev/vda as a disk of this
# kernel (ublk), on CPUs that are chosen, taken away and given back. It prints "@ NAME ok" for each part, or
# "@ NAME failed WHY".
log=/run/log
disk=/dev/ublkb3
group=/sys/fs/cgroup/served
dd=/usr/sbin/dd

part() {
    name=$1
    shift
    if "$@" 2>/run/errors </dev/null >/run/said; then
        echo "@ $name ok"
    else
        echo "@ $name failed $(tr '\n' ' ' </run/errors) $(tr '\n' ' ' </run/said) $(tr '\n' ' ' <$log)"
    fi
    kill "$server" 2>/dev/null && wait "$server"
}
# Serves as a process of the cgroup.
serve() {
    : >"$log"
    sh -c "echo \$\$ >$group/cgroup.procs && exec ./blockyard serve /dev/vda --key-file pass --ublk=3 \
        --control /run/control $*" >"$log" 2>&1 &
    server=$!
    while ! grep -q '^serving ' "$log"; do
        kill -0 "$server" && usleep 50000 || return
    done
}
loads() { $dd if=$disk of=/dev/null bs=1M count=2 iflag=direct status=none; }
# Tries for 60 s, with a load: a server that does nothing counts nothing.
becomes() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] && loads && usleep 100000 || return
    done
}
status() { ./blockyard status /run/control; }
says() { status | grep -q "^CPUs: $1\$"; }
# All threads may run on these CPUs, and on no other one.
is_on() {
    for thread in /proc/$server/task/*; do
        cpus=$(sed -n 's/^Cpus_allowed_list:.//p' $thread/status)
        [ "$cpus" = "$1" ] || { echo "$(cat $thread/comm) may run on $cpus" && return 1; }
    done
}
# Pages of its own memory on a node.
pages() {
    awk -v node="N$1=" '/anon=/ { for (i = 1; i <= NF; i++) if (index($i, node) == 1) sum += substr($i, 4) }
        END { print sum + 0 }' /proc/$server/numa_maps
}
# Pages from before the choice of the node stay: 1.4 MiB.
has_memory_on() {
    here=$(pages $1)
    there=$(pages $((1 - $1)))
    echo "$here pages on node $1, $there on the other one"
    [ "$here" -gt "$there" ] && [ "$there" -lt 512 ]
}
workers() { [ "$(grep -l '^crypt/u' /proc/$server/task/*/comm | wc -l)" = $1 ]; }

node() { serve --numa $1 && loads && is_on $2 && says "$2; memory of NUMA node $1" && has_memory_on $1 && workers 1; }
best() {
    serve --numa auto && loads && chosen=$(status | sed -n 's/^CPUs: .*NUMA node //p') &&
        is_on "$((2 * chosen))-$((2 * chosen + 1))" && has_memory_on "$chosen"
}
some() { serve --cpus 0,3 --numa 1 && says '3; memory of NUMA node 1' && is_on 3 && workers 0; }
absent() { ! serve --numa 2 && grep -q -- '--numa 2' "$log"; }

# The time of one CPU leaves nothing for a worker; more time does.
quota() {
    echo '100000 100000' >$group/cpu.max
    serve && loads && says "0-3; the cgroup's quota is the time of 1" && workers 0 &&
        echo '300000 100000' >$group/cpu.max && becomes workers 2 &&
        says "0-3; the cgroup's quota is the time of 3" &&
        echo max >$group/cpu.max && becomes workers 3 && says 0-3
}
cpuset() {
    echo 2-3 >$group/cpuset.cpus
    serve && loads && is_on 2-3 && workers 1 && says 2-3 &&
        echo 0-3 >$group/cpuset.cpus && becomes workers 3 && is_on 0-3 && says 0-3 &&
        echo 1 >$group/cpuset.cpus && loads && is_on 1 && says 1
}

insmod /ublk_drv.ko
mount -t cgroup2 none /sys/fs/cgroup
echo '+cpu +cpuset' >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group
part node-0 node 0 0-1
part node-1 node 1 2-3
part best-node best
part some-cpus some
part absent-node absent
part quota quota
part cpuset cpuset
echo "@ done"
