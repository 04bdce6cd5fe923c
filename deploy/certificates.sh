#!/bin/sh
# Makes a certificate authority and certificates of it, for the relays and NATS of a fleet; needs openssl.
#
#   certificates.sh FOLDER NAME=HOST[,HOST…] …
#
# FOLDER gets ca.crt and ca.key, unless it has them, and NAME.crt and NAME.key for each NAME, anew. A HOST that begins
# with a digit is an address. ca.key makes certificates that the fleet trusts: keep it elsewhere.
set -eu
umask 077
days=365
folder=$1
shift
mkdir -p "$folder"
cd "$folder"
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null; }

if ! test -e ca.key; then
    key ca.key
    openssl req -x509 -key ca.key -subj "/CN=execserver fleet" -days "$((10 * days))" -out ca.crt \
        -addext keyUsage=critical,keyCertSign,cRLSign
fi
for each in "$@"; do
    name=${each%%=*}
    hosts=$(printf %s "${each#*=}" | sed -E 's/(^|,)/\1DNS:/g; s/DNS:([0-9])/IP:\1/g')
    key "$name.key"
    # A NATS server is also the client of the others.
    printf '%s\n' "subjectAltName=$hosts" "extendedKeyUsage=serverAuth,clientAuth" >"$name.extensions"
    openssl req -new -key "$name.key" -subj "/CN=$name" |
        openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days "$days" -extfile "$name.extensions" \
            -out "$name.crt" 2>/dev/null
    rm "$name.extensions"
done
