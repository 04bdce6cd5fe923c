# Process 1 on the root file system: no systemd, one hierarchy of control groups, of version 2. Runs the tests as
# root, who may do everything in the root group, and as an ordinary user with a delegated group.
cd "$(dirname "$0")/../../.." || exit 1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
export EXECSERVER_TEST_PATIENCE=120 HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
# A copy: the checkout may change while the tests run.
mkdir -p /run/checkout/.venv
# virtiofsd holds a descriptor for each file that is read, so other environments stay where they are.
for folder in .venv .git .hypothesis .interop .integrations .mypy_cache .pytest_cache .release .ruff_cache dist site; do
	echo "./$folder"
done > /run/left-out
echo node_modules >> /run/left-out
tar c --exclude-from /run/left-out . | tar x -C /run/checkout
mount --bind .venv /run/checkout/.venv
mount --rbind /run/checkout "$PWD"
cd "$PWD" || exit 1
# The first sandbox reads its programs from the host.
.venv/bin/execserver doctor > /dev/null 2>&1
uname -r
cat /sys/fs/cgroup/cgroup.controllers
chosen=$(sed -n 's/.*execserver\.tests=\([^ ]*\).*/\1/p' /proc/cmdline)
tests="$PWD/.venv/bin/python -m pytest -v --color=no -p no:cacheprovider --no-header --timeout 600 tests/limits -k ${chosen:-test}"

users=$(sed -n 's/.*execserver\.users=\([^ ]*\).*/\1/p' /proc/cmdline)
echo "== users: $users"
root=left user=left
case $users in *root*) $tests --basetemp /run/root; root=$? ;; esac

echo "== an ordinary user, in a delegated group"
group=/sys/fs/cgroup/delegated
echo "+memory +pids +cpu +io" > /sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo "+memory +pids +cpu +io" > $group/cgroup.subtree_control
mkdir $group/tests
chown -R 1000:1000 $group
# Only in the memory above the file system.
for folder in / /root /root/.pyenv $(dirname "$PWD") "$PWD"; do chmod a+rx "$folder" 2> /dev/null; done
mkdir -m 755 /run/home && chown 1000:1000 /run/home
# The tests are in the delegated group too: a process can be moved within it only.
case $users in *ordinary*) sh -c "echo \$\$ > $group/tests/cgroup.procs; HOME=/run/home EXECSERVER_TEST_GROUP=$group \
	exec setpriv --reuid 1000 --regid 1000 --clear-groups $tests --basetemp /run/home/tests"
	user=$? ;;
esac

echo "== root: $root, user: $user"
# Not if nothing ran.
case $root$user in 00|0left|left0) echo "LIMITS PASSED" ;; esac
echo o > /proc/sysrq-trigger
sleep 60
