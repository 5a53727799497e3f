#!/bin/sh
# What the browser tests need: node, a Chromium, and two packages of node's. Quick when all is there.
# Whatever cannot be had is said; the tests then skip, and say why.
cd "$(dirname "$0")" || exit 1

has_chromium() {
    [ -n "$HEADWAY_CHROMIUM" ] || command -v chromium-headless-shell chromium google-chrome >/dev/null
}

apt() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        echo "missing: $*; install it, or run this as root where there is apt-get" >&2
    fi
}

command -v npm >/dev/null || apt nodejs npm
has_chromium || apt chromium-headless-shell || apt chromium

if [ ! -e node_modules/.installed ] || [ package-lock.json -nt node_modules/.installed ]; then
    if command -v npm >/dev/null; then
        PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --no-audit --no-fund --loglevel=error \
            && touch node_modules/.installed
    fi
fi
exit 0
