#!/usr/bin/env bash
# Fails unless a tag (v1.2.3) matches the version in Cargo.toml and CHANGELOG.md has a section for it.

set -eu
cd "$(dirname "$0")/.."
tag=$1
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

if [ "$tag" != "v$version" ]; then
    echo "the tag is $tag, but Cargo.toml says $version" >&2
    exit 1
fi
if ! grep -Eq "^## $version - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; then
    echo "CHANGELOG.md has no line \"## $version - YYYY-MM-DD\"" >&2
    exit 1
fi
echo "$tag is the version of Cargo.toml and of CHANGELOG.md"
