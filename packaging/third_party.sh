#!/usr/bin/env bash
# third_party.sh FOLDER: static libraries that Debian 12 has only as shared ones, from Debian's own sources, into FOLDER.
# curl is made without what `dsv4 pull` does not use; Debian's static one wants Kerberos, LDAP and ssh.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd)
readonly folder
[[ -f $folder/made ]] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# A list of sources of its own: the machine's stays as it is.
mkdir -p lists/partial
. /etc/os-release
printf 'deb-src http://deb.debian.org/debian %s main\n' "$VERSION_CODENAME" >sources.list
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists"
  -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" source --download-only fmtlib prometheus-cpp curl
for archive in ./*.orig.tar.?z; do tar xf "$archive"; done
fmt=$(echo fmtlib-*) prometheus=$(echo prometheus-cpp-*) curl=$(echo curl-*)

flags=(-O2 -g0 -fPIC -std=c++17 "-ffile-prefix-map=$work=.")
compile() { # LIBRARY SOURCE FLAGS...
  local library=$1 source=$2 object
  shift 2
  object="$work/objects/$library/$(tr / _ <<<"${source%.*}").o"
  mkdir -p "$(dirname "$object")"
  ccache g++ "${flags[@]}" "$@" -c "$source" -o "$object"
}
for source in format os; do compile libfmt "$fmt/src/$source.cc" -I"$fmt/include"; done
while read -r source; do compile libprometheus-cpp-core "$source" -I"$prometheus/core/include"; done < <(
  find "$prometheus/core/src" -name '*.cc' | LC_ALL=C sort)
for library in objects/*; do ar rcsD "$folder/$(basename "$library").a" "$library"/*.o; done

cd "$curl"
without=(zlib brotli zstd libpsl libidn2 nghttp2 librtmp libssh2 ca-bundle ca-path)
disabled=(ldap ldaps rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt ftp file manual ntlm)
CFLAGS="-O2 -g0 -ffile-prefix-map=$work=." ./configure --disable-shared --enable-static --with-openssl --with-ca-fallback \
  "${without[@]/#/--without-}" "${disabled[@]/#/--disable-}" >"$work/curl.log" 2>&1 || { tail -n 30 "$work/curl.log"; exit 1; }
make -C lib -j "$(nproc)" V=0 >>"$work/curl.log" 2>&1 || { tail -n 30 "$work/curl.log"; exit 1; }
cp lib/.libs/libcurl.a "$folder/"
touch "$folder/made"
