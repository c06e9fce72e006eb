#!/bin/sh
# Check the JavaScript of the pages with eslint and tsc, which `npm ci` installs once into tools/web/node_modules.
# Without a suitable Node.js, print how to get the checks. Without the npm registry, fail only if CI=true.
cd "${0%/*}/../.." || exit 1
web=tools/web
installed=$web/node_modules/lock.sum # the checksum of the lock file that is installed

if ! command -v npm >/dev/null 2>&1 || ! node -e '
    const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major >= 24 || (major === 22 && minor >= 13) || (major === 20 && minor >= 19) ? 0 : 1)' 2>/dev/null
then
    echo "pages: not checked. Install Node.js 20.19, 22.13, 24 or newer, which contains npm, then run: make lint"
    exit 0
fi

sum=$(cksum <$web/package-lock.json)
if [ "$sum" != "$(cat $installed 2>/dev/null)" ]; then
    echo "pages: installing eslint and tsc into $web/node_modules (once)"
    if ! said=$(npm ci --prefix $web --ignore-scripts --no-audit --no-fund --loglevel=error \
        --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=60000 2>&1); then
        code=$(echo "$said" | sed -n 's/^npm error code //p' | head -n 1)
        if [ "$code" = EUSAGE ]; then
            echo "error: $web/package-lock.json does not match package.json. Run: npm install --prefix $web" >&2
            exit 1
        fi
        problem="npm could not install eslint and tsc (${code:-no error code}). Allow access to the npm registry, then"
        problem="$problem run: make lint"
        if [ "$CI" = true ]; then
            echo "error: $problem" >&2
            exit 1
        fi
        echo "pages: not checked, because $problem"
        exit 0
    fi
    echo "$sum" >$installed
fi

status=0
$web/node_modules/.bin/eslint --config $web/eslint.config.js src/attendo/assets || status=$?
$web/node_modules/.bin/tsc --project $web || status=$?
exit $status
