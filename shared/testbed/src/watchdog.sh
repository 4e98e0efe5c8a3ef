# Ends what a testbed started and removes its folder, once the testbed's process is gone, however it went.
#
# $1 is the folder to make ours in. Our stdin is a pipe that only the testbed's process holds: it writes
#   add PID START KIND     a process it started (START as in /proc/PID/stat, KIND service|tool|redis|postgres)
#   del PID                a process it saw end
#   link NAME              a network link it makes
# and the kernel closes it when that process ends. Only processes named there are ever signalled, and only while
# their START is still the same: a process id that was given to somebody else is left alone.

trap '' INT TERM HUP QUIT PIPE
set -f
umask 022
dir=$(mktemp -d "${1%/}/dedup-testbed.XXXXXXXX") || exit 1
# The stores' unprivileged user must get through, not look around.
chmod 0711 "$dir"
cd /
printf '%s\n' "$dir"
exec >/dev/null 2>&1

procs=''
links=''
while read -r verb pid start kind; do
    case $verb in
    add) procs="$procs $pid:$start:$kind" ;;
    del)
        kept=''
        for p in $procs; do [ "${p%%:*}" = "$pid" ] || kept="$kept $p"; done
        procs=$kept
        ;;
    link) links="$links $pid" ;;
    esac
done

# runs PID START: that very process has not ended (a zombie has).
runs() {
    read -r stat <"/proc/$1/stat" || return 1
    set -- "$2" ${stat##*) }
    [ "$2" != Z ] && [ "$2" != X ] && [ "${21}" = "$1" ]
}

# living KIND…: their process ids.
living() {
    for p in $procs; do
        rest=${p%:*}
        case " $* " in *" ${p##*:} "*) runs "${rest%:*}" "${rest#*:}" && printf '%s ' "${rest%:*}" ;; esac
    done
}

# tell SIGNAL KIND…; a frozen process only hears it once it is thawed.
tell() {
    signal=$1
    shift
    pids=$(living "$@")
    [ -z "$pids" ] || { kill "-$signal" $pids; kill -CONT $pids; }
}

# until_gone TWENTIETHS KIND…: waits, kills, and waits for that.
until_gone() {
    left=$1
    shift
    while [ -n "$(living "$@")" ]; do
        [ "$left" -gt 0 ] || tell KILL "$@"
        left=$((left - 1))
        sleep 0.05
    done
}

# Services first: they end cleanly only while their stores still answer.
tell KILL tool
tell TERM service
until_gone 100 service tool
# QUIT ends Postgres at once; its postmaster itself kills what has not ended after 5 s.
tell QUIT postgres
tell TERM redis
until_gone 200 postgres redis

# A namespace outlives its processes while the kernel still resends what they had sent into a cut line, and the link with it.
for link in $links; do ip link del "$link"; done

# A postmaster that was killed (and not started again) left the System V segment that guards its data folder.
set +f
for lock in "$dir"/*/postgres/postmaster.pid "$dir"/postmaster.pid "$dir"/*/postmaster.pid; do
    [ -f "$lock" ] && ipcrm -m "$(sed -n '7s/.* //p' "$lock")"
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$dir" && exit 0
    sleep 0.1
done
exit 1
