#!/usr/bin/env bash
# Tries the Containerfile without a container engine, as `./x container` does. It makes a fresh Debian in a temporary folder,
# does there what the file's last stage says, and runs the trainer in it. Then it plays Kubernetes: three pods with a network
# of their own run the manifest of `trainer job kubernetes`. In place of the first stage it takes a trainer that is built.
#
# Needs root, debootstrap and ip. Everything that it starts or mounts is gone when it ends.
set -euo pipefail

die() {
    echo "try: $*" >&2
    exit 2
}

# The instructions of the Containerfile, each in one line.
instructions() {
    sed -e '/^ *#/d' container/Containerfile | sed -e ':join' -e '/\\$/{N;s/ *\\\n */ /;bjoin' -e '}' | sed '/^$/d'
}

# Makes the Debian of an image such as debian:bookworm-slim, from where this machine's own comes.
make_debian() {
    local suite=${1#debian:} mirror
    [ "$suite" != "$1" ] || die "$1 is not an image of Debian, which is what this script can make"
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | sed '/debian$/!d;q')
    debootstrap --variant=minbase "${suite%-slim}" "$root" ${mirror:+"$mirror"} >"$root.log" ||
        die "debootstrap failed: $(tail -3 "$root.log")"
    cp /etc/resolv.conf "$root/etc/"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
}

# Runs a program in the image.
in_image() {
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"
}

# Does what the stages say. Of those before the last, only the arguments of the file count.
build() {
    local instruction rest stages stage=0
    stages=$(instructions | grep -c '^FROM ')
    while read -r instruction rest; do
        [ "$instruction" != FROM ] || stage=$((stage + 1))
        case $instruction in
            ARG) [ $stage != 0 ] && [ $stage != "$stages" ] || eval "${rest%%=*}=\${${rest%%=*}-${rest#*=}}" ;;
            FROM) [ $stage != "$stages" ] || make_debian "$(eval "echo $rest")" ;;
            RUN) [ $stage != "$stages" ] || in_image env PACKAGES="${PACKAGES-}" sh -ec "$rest" >>"$root.log" 2>&1 ||
                die "RUN $rest: $(tail -5 "$root.log")" ;;
            COPY)
                [ $stage = "$stages" ] || continue
                local words=($rest)
                local target=$root${words[-1]}
                mkdir -p "$(dirname "$target")"
                case $rest in
                    --from=build*/dist/*) cp "$(dirname "$binary")/${target##*/}" "$target" && strip "$target" ;;
                    --from=*) die "COPY $rest: only the trainer and its library come from another stage" ;;
                    *) cp -r "${words[@]::${#words[@]}-1}" "$target" ;;
                esac
                ;;
            CMD | WORKDIR) ;;
            *) die "$instruction is not an instruction that this script knows" ;;
        esac
    done < <(instructions)
}

# Starts a pod of that name and address. Its number is that of a process that holds its network, host name and mounts.
start_pod() {
    local name=$1 address=$2
    unshare --net --uts --mount bash -c "
        hostname $name
        mount -t tmpfs tmpfs '$root/dev/shm' && mount -t tmpfs tmpfs '$root/tmp'
        exec sleep infinity" &
    pod=$!
    until [ "$(nsenter --target $pod --uts hostname)" = "$name" ]; do sleep 0.1; done
    nsenter --target $pod --net ip link set lo up
    echo "$address $name $name.trainer.default.svc" >>"$root/etc/hosts"
}

# Becomes a program in a pod.
in_pod() {
    local of=$1
    shift
    exec nsenter --target "$of" --net --uts --mount env -i PATH="$PATH" HOME=/root "$@"
}

# What the operator does for an MPIJob of two workers: keys, a file of hosts, variables, and who starts when.
play_kubernetes() {
    local launcher worker supervisor number
    mkdir -p "$root/data" "$root/etc/mpi" "$root/root/.ssh"
    in_image ssh-keygen -q -t ecdsa -b 521 -m PEM -N '' -f /root/.ssh/id_rsa
    cp "$root/root/.ssh/id_rsa.pub" "$root/root/.ssh/authorized_keys"
    chmod 600 "$root"/root/.ssh/*
    mount --bind -o ro "$root/root/.ssh" "$root/root/.ssh"
    start_pod trainer-launcher 10.1.0.1
    launcher=$pod
    nsenter --target "$launcher" --net sh -c 'ip link add name pods type bridge && ip addr add 10.1.0.1/24 dev pods && ip link set pods up'
    for number in 0 1; do
        start_pod "trainer-worker-$number" "10.1.0.$((number + 2))"
        worker=$pod
        nsenter --target "$launcher" --net ip link add "worker$number" master pods up type veth peer name eth0 netns "$worker"
        nsenter --target "$worker" --net sh -c "ip addr add 10.1.0.$((number + 2))/24 dev eth0 && ip link set eth0 up"
        echo "trainer-worker-$number.trainer.default.svc slots=2" >>"$root/etc/mpi/hostfile"
        in_pod "$worker" chroot "$root" /usr/sbin/sshd -De &
    done
    in_image sh -ec 'seq 1 9999 >/data/text'
    write_manifest 100000
    start_launcher
    until [ -d "$root/data/ckpt/step-00000005" ]; do
        kill -0 "$supervisor" || die "the job ended before its first checkpoint"
        sleep 0.2
    done
    echo "try: the job is deleted"
    kill -TERM "$supervisor"
    # The kubelet runs this in a worker before it ends the pod.
    (in_pod "$worker" chroot "$root" sh -c "$(sed -n 's/^ *command: \[sh, -c, "\(.*\)"\]$/\1/p' "$root.yaml")")
    wait_for_end 75
    local last
    last=$(ls -d "$root"/data/ckpt/step-* | tail -1)
    echo "try: the job is started again, from ${last##*/}"
    last=$((10#${last##*step-} + 5))
    write_manifest $last
    start_launcher
    wait_for_end 0
    [ -d "$root/data/ckpt/step-$(printf %08d $last)" ] || die "the pods saved no checkpoint"
    [ -f "$root/data/runs/last/run.log" ] || die "the run's log is not on the shared storage"
}

write_manifest() {
    in_image trainer job kubernetes --image trainer --claim disk --nodes 2 --ranks-per-node 2 -- --preset tiny --device host \
        --data-path /data/text --save /data/ckpt --save-interval 5 --global-batch-size 16 --steps "$1" >"$root.yaml"
}

# Runs the launcher's command of the manifest, as the operator sets it up.
start_launcher() {
    local words
    words=$(sed -n 's/^ *command: \[\("trainer".*\)\]$/\1/p' "$root.yaml")
    eval "set -- ${words//\",\"/\" \"}"
    in_pod "$launcher" OMPI_MCA_orte_keep_fqdn_hostnames=true OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile \
        OMPI_MCA_plm_rsh_args='-o ConnectionAttempts=10' OMPI_MCA_orte_set_default_slots=2 \
        chroot "$root" sh -c 'cd /data && exec "$@"' sh "$@" &
    supervisor=$!
}

wait_for_end() {
    local code=0
    wait "$supervisor" || code=$?
    [ $code = "$1" ] || die "the launcher ended with exit code $code, not $1"
}

[ $# -ge 1 ] || die "usage: container/try.sh TRAINER"
if [ $# = 1 ]; then
    [ "$(id -u)" = 0 ] || die "it makes a root file system. Fix: run it as root"
    for program in debootstrap ip unshare nsenter strip; do
        command -v $program >/dev/null || die "$program is missing. Fix: apt-get install debootstrap iproute2 util-linux binutils"
    done
    [ -x "$1" ] || die "$1 is no program"
    root=$(mktemp -d)
    trap 'rm -rf "$root" "$root.log" "$root.yaml"' EXIT
    # What is mounted or started is in namespaces that end with the script.
    unshare --mount --pid --fork --kill-child --mount-proc "$0" "$(realpath "$1")" "$root"
    exit
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=$1 root=$2
chmod 755 "$root"
echo "try: makes the image in $root"
build
echo "try: a single process, and two ranks"
in_image sh -ec 'cd /tmp && trainer --preset tiny --steps 2 --device host && trainer launch -n 2 -- --preset tiny --steps 2 --device host'
echo "try: an MPIJob of a launcher and two workers"
play_kubernetes
echo "try: everything ran"
