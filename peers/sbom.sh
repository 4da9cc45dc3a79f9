#!/usr/bin/env bash
# Lists the packages in an image: bash peers/sbom.sh IMAGE FOLDER
#
# FOLDER/python.cdx.json: the Python packages with versions and licences, in CycloneDX's format (pip install cyclonedx-bom).
# FOLDER/debian.txt: the packages of the base system. Not listed: what lies inside of wheels, such as hivemind's p2pd and its Go
# modules, and the libraries in torch. Needs buildah, and the Python of the image at the same place on this machine.
set -euo pipefail
if [ $# -ne 2 ]; then
  sed -n '2,/^set/{/^#/p}' "$0" >&2
  exit 2
fi
folder=$(realpath --canonicalize-missing "$2")
mkdir -p "$folder"
cd "$(dirname "$0")/.."
container=$(buildah from --pull-never "$1")
trap 'buildah rm "$container" > /dev/null' EXIT
root=$(buildah mount "$container")
cyclonedx-py environment --of JSON --pyproject pyproject.toml --output-file "$folder/python.cdx.json" "$root/opt/adloco/bin/python"
buildah run --isolation chroot "$container" -- dpkg-query --show > "$folder/debian.txt"
wc -l "$folder/debian.txt"
