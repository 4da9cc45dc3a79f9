#!/usr/bin/env bash
# Builds the image from this checkout without a daemon: bash peers/build-image.sh [options] [-- options of buildah]
#
#   --variant cpu|cuda   which build of torch (default cpu)
#   --tag NAME           default adloco-peer:VARIANT
#   --base IMAGE         any glibc system with python3 and venv (default: that of the Dockerfile)
#   --bootstrap          make the base with debootstrap instead of fetching one; needs root, and a Debian mirror ($MIRROR)
#
# Behind a mirror of the package index, hand pip's settings to the build, not to the image:
#   bash peers/build-image.sh -- --volume /etc/pip.conf:/etc/pip.conf:ro --build-arg CPU_INDEX=
set -euo pipefail
cd "$(dirname "$0")/.."

variant=cpu tag='' base='' bootstrap=no
while [ $# -gt 0 ]; do
  case $1 in
    --variant) variant=$2; shift 2 ;;
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --bootstrap) bootstrap=yes; shift ;;
    --) shift; break ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
  esac
done
tag=${tag:-adloco-peer:$variant}

if [ "$bootstrap" = yes ]; then
  base=localhost/python-bookworm:latest
  if ! buildah inspect --type image "$base" > /dev/null 2>&1; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" \
      "${MIRROR:-http://deb.debian.org/debian}"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$root" /
    buildah commit --quiet --rm "$container" "$base"
  fi
fi

# OCI images have no health check; Docker's format does, and every runtime reads it.
buildah bud --isolation chroot --format docker --layers --build-arg "VARIANT=$variant" ${base:+--build-arg "BASE=$base"} \
  --tag "$tag" "$@" .
buildah images "$tag"
