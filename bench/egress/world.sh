#!/usr/bin/env bash
# What the egress process is measured with: one web server and two proxies of the same kind, in a network namespace of their own.
#
#   unshare --net --mount bench/egress/world.sh DIRECTORY MITMDUMP COMMAND...
#
# Runs the command once all of them listen, and ends with its status. DIRECTORY gets their files. Nothing outside is reached, and the name
# bench.test exists only in here.
set -euo pipefail
readonly PLACE=$1 MITMDUMP=$2
shift 2
readonly ADDRESS=203.0.113.10 HAPROXY_PORT=8443 MITM_PORT=8444

ip link set lo up
ip address add "$ADDRESS/32" dev lo
printf '127.0.0.1 localhost\n%s bench.test\n' "$ADDRESS" >"$PLACE/hosts"
mount --bind "$PLACE/hosts" /etc/hosts

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=Benchmark authority" \
    -keyout "$PLACE/ca.key" -out "$PLACE/ca.pem" 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=bench.test -keyout "$PLACE/server.key" -out "$PLACE/server.csr" 2>/dev/null
printf 'subjectAltName=DNS:bench.test\nextendedKeyUsage=serverAuth\n' >"$PLACE/server.ext"
openssl x509 -req -in "$PLACE/server.csr" -CA "$PLACE/ca.pem" -CAkey "$PLACE/ca.key" -CAcreateserial -days 30 \
    -extfile "$PLACE/server.ext" -out "$PLACE/server.crt" 2>/dev/null
cat "$PLACE/server.crt" "$PLACE/server.key" >"$PLACE/server.pem"

mkdir -p "$PLACE/www"
head -c 1024 /dev/zero | tr '\0' x >"$PLACE/www/index.html"
truncate -s 512M "$PLACE/www/stream"
chmod -R a+rX "$PLACE"

cat >"$PLACE/nginx.conf" <<CONF
daemon off;
pid $PLACE/nginx.pid;
error_log $PLACE/nginx.log;
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path $PLACE/body;
    proxy_temp_path $PLACE/proxy;
    fastcgi_temp_path $PLACE/fastcgi;
    uwsgi_temp_path $PLACE/uwsgi;
    scgi_temp_path $PLACE/scgi;
    server {
        listen $ADDRESS:80 backlog=4096;
        listen $ADDRESS:443 ssl backlog=4096;
        ssl_certificate $PLACE/server.crt;
        ssl_certificate_key $PLACE/server.key;
        ssl_session_tickets off;
        root $PLACE/www;
    }
}
CONF
cat >"$PLACE/haproxy.cfg" <<CONF
global
    nbthread 2
    maxconn 8192
defaults
    mode http
    timeout connect 10s
    timeout client 60s
    timeout server 60s
frontend here
    bind 127.0.0.1:$HAPROXY_PORT ssl crt $PLACE/server.pem
    default_backend there
backend there
    server bench $ADDRESS:443 ssl verify required ca-file $PLACE/ca.pem verifyhost bench.test
CONF

# Whatever happens, these end with this script.
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
nginx -c "$PLACE/nginx.conf" &
haproxy -f "$PLACE/haproxy.cfg" -db >"$PLACE/haproxy.log" 2>&1 &
"$MITMDUMP" --quiet --mode "reverse:https://bench.test:443" --listen-host 127.0.0.1 --listen-port "$MITM_PORT" \
    --set confdir="$PLACE/mitm" --set ssl_verify_upstream_trusted_ca="$PLACE/ca.pem" >"$PLACE/mitm.log" 2>&1 &

for url in "http://bench.test/" "https://bench.test/" "https://127.0.0.1:$HAPROXY_PORT/" "https://127.0.0.1:$MITM_PORT/"; do
    curl --silent --insecure --output /dev/null --fail --retry 60 --retry-delay 1 --retry-all-errors --noproxy '*' "$url" || {
        echo "error: $url does not answer; the logs are $PLACE/*.log" >&2
        exit 1
    }
done
export SSL_CERT_FILE=$PLACE/ca.pem
"$@"
