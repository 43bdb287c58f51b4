# shellcheck shell=bash
# What .ci/run, .ci/pythons and .ci/in-python share: where things are kept, how Debian packages
# come, and which interpreter a version means. Nothing here names a mirror or an index: apt and pip
# are asked for theirs, so the same files work on another machine.

# shellcheck disable=SC2034 # used by those that source this
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/mdispatch-ci
# Slow things are kept under a name that holds a digest of their recipe: a new recipe is a new
# folder, and a half-built one never has the final name.
SID_PACKAGES=python3.14,python3.14-venv,python3.14-dev,python3.15,python3.15-venv,python3.15-dev
SID_PACKAGES+=,gcc,ccache,make,libc6-dev,libffi-dev,pkgconf,ca-certificates
FREE_CONFIGURE="--disable-gil --without-static-libpython --with-ensurepip=install"
SID=$CACHE/sid-$(sha256sum <<<"$SID_PACKAGES" | cut -c1-8)
FREE=$CACHE/3.13t-$(sha256sum <<<"$FREE_CONFIGURE" | cut -c1-8)
mkdir -p "$CACHE"

note() { printf '%s\n' "$*" >&2; }

# Installs Debian packages that are missing. Touches neither network nor dpkg when all are there.
# Always from the machine's own release: its libc must stay the one that it was built with.
apt_install() {
    local missing=() p
    for p in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] ||
            missing+=("$p")
    done
    ((${#missing[@]})) || return 0
    (
        flock 9 # a build in the background may want packages at the same moment
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update &&
            apt-get -qq install -y --no-install-recommends "${missing[@]}" </dev/null
    ) 9>"$CACHE/apt.lock" >"$CACHE/apt.log" 2>&1 || {
        note "apt-get could not install: ${missing[*]}"
        tail -n 5 "$CACHE/apt.log" >&2
        return 1
    }
}

# The archive that this machine's apt uses for Debian itself (not for its security updates).
debian_mirror() {
    local update
    for update in "" "apt-get -qq update"; do
        $update # apt knows the label once it has the lists
        # shellcheck disable=SC2016 # apt expands it
        apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
            awk '$1 == "Debian" { print $2; found = 1; exit } END { exit !found }' && return
    done
}

# find_python VERSION: prints the interpreter's path; for 3.14 and 3.15 that is a path in $SID.
find_python() {
    local dir
    case $1 in
    3.14 | 3.15)
        [[ -x $SID/usr/bin/python$1 ]] && echo "/usr/bin/python$1"
        ;;
    *t)
        [[ -x $FREE/bin/python$1 ]] && echo "$FREE/bin/python$1"
        ;;
    *)
        # pyenv's shims answer for every version and then fail: look at its installations instead,
        # which lie beside its folder of shims.
        while read -r dir; do
            [[ $dir == */shims/* ]] || { echo "$dir" && return; }
            for dir in "${dir%/shims/*}"/versions/"$1".*/bin/"python$1"; do
                [[ -x $dir ]] && echo "$dir" && return
            done
        done < <(type -ap "python$1")
        return 1
        ;;
    esac
}
