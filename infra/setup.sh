#!/bin/sh
# Installs what the demo and the tests need on Debian or Ubuntu, and only what is missing:
# Postgres, Redis, a C compiler for the build, root certificates, libfaketime and iproute2 for the fault rig, Python's Postgres driver for the example
# consumer, and Prometheus (with promtool). Run as often as you like.
# None of it is started as a system service: the testbed runs private copies of its own.
set -eu

missing=''
need() { missing="$missing $*"; }

has_postgres() {
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1
}

has_postgres || need postgresql
command -v redis-server >/dev/null 2>&1 || need redis-server
command -v cc >/dev/null 2>&1 || need gcc libc6-dev
command -v ip >/dev/null 2>&1 || need iproute2
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || need faketime
[ -s /etc/ssl/certs/ca-certificates.crt ] || need ca-certificates
command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 || need prometheus
/usr/bin/python3 -c 'import psycopg2' 2>/dev/null || need python3 python3-psycopg2

[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "setup: missing packages:$missing" >&2
    echo "setup: install them as root, for instance: sudo apt-get install$missing" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: missing packages:$missing; there is no apt-get here, install them by other means" >&2
    exit 1
fi

echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
install_packages() { apt-get install -y -q --no-install-recommends "$@"; }

# While a policy says 101, package scripts start no service. One that was there before stays as it was.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

apt-get update -q
case " $missing " in
*' postgresql '*)
    # Without this the package makes a cluster of its own, which would run from the next boot on.
    install_packages postgresql-common
    conf=/etc/postgresql-common/createcluster.conf
    if grep -Eq '^[[:space:]]*#?[[:space:]]*create_main_cluster' "$conf" 2>/dev/null; then
        sed -Ei 's/^[[:space:]]*#?[[:space:]]*create_main_cluster.*/create_main_cluster = false/' "$conf"
    else
        echo 'create_main_cluster = false' >>"$conf"
    fi
    ;;
esac
# shellcheck disable=SC2086  # a list of words on purpose
install_packages $missing

# A policy does not keep the next boot from starting what came with a service of its own.
for service in redis-server prometheus; do
    case " $missing " in
    *" $service "*)
        if [ -d /run/systemd/system ]; then systemctl disable --now "$service" >/dev/null 2>&1 || :; fi
        ;;
    esac
done
