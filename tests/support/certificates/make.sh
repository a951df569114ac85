#!/bin/sh
# Makes new certificates, each for a hundred years. Run once, by hand; no key of an authority is kept.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

authority() { # file, name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$2" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign \
        -keyout "$work/$1.key" -out "$1.pem"
}

certificate() { # authority, file, name, alternative names
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$3" -keyout "$2.key" -out "$work/$2.csr"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=critical,CA:FALSE\n' "$4" >"$work/ext"
    openssl x509 -req -in "$work/$2.csr" -CA "$1.pem" -CAkey "$work/$1.key" -CAcreateserial -CAserial "$work/serial" \
        -days 36500 -extfile "$work/ext" -out "$2.pem"
}

authority ca "leasehold test CA"
certificate ca server localhost DNS:localhost,IP:127.0.0.1
# A client's; a server that shows it goes by another name than the one it is asked for under.
certificate ca client booking-api DNS:booking-api
# An authority and a client that no server trusts.
authority stranger-ca "a stranger's CA"
certificate stranger-ca stranger booking-api DNS:booking-api
# A server and its clients that go by a name only, not by an address, and a client's of X.509 version 1.
authority named-ca "leasehold test CA of names"
certificate named-ca named localhost DNS:localhost
version_1() { # authority, file, name
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$3" -keyout "$2.key" -out "$work/$2.csr"
    openssl x509 -req -in "$work/$2.csr" -CA "$1.pem" -CAkey "$work/$1.key" -CAcreateserial -CAserial "$work/serial" \
        -days 36500 -out "$2.pem"
}
version_1 named-ca version-1 localhost
# An authority, and a certificate that has expired.
authority old-ca "leasehold test CA of the expired"
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" -keyout expired.key -out "$work/expired.csr"
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=critical,CA:FALSE\n' >"$work/ext"
printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nserial=%s/number\nnew_certs_dir=%s\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' \
    "$work" "$work" "$work" >"$work/ca.conf"
: >"$work/index"
echo 01 >"$work/number"
openssl ca -batch -config "$work/ca.conf" -cert old-ca.pem -keyfile "$work/old-ca.key" -in "$work/expired.csr" \
    -extfile "$work/ext" -startdate 20240101000000Z -enddate 20250310142536Z -notext -out expired.pem
chmod 600 ./*.key
