# shellcheck shell=sh disable=SC1091
. "$(dirname "$0")/lib.sh"
dir=$(mktemp -d)
cd "$dir" || exit 1
chmod 777 "$dir"
cat >page.html <<'END'
<!doctype html><title>page</title><p id=p>before</p>
<script>
const w = new Worker(URL.createObjectURL(new Blob(['postMessage([...Array(1000).keys()].reduce((a, b) => a + b))'])));
w.onmessage = e => {
    const c = document.createElement('canvas').getContext('2d');
    c.fillRect(0, 0, 10, 10);
    document.getElementById('p').textContent = 'worker ' + e.data + ' pixel ' + c.getImageData(5, 5, 1, 1).data[3];
};
</script>
END
browse() { # as an ordinary user
    timeout -k 5 120 setpriv --reuid=1000 --regid=1000 --clear-groups env HOME="$dir/home" chromium --headless --disable-gpu \
        --disable-dev-shm-usage --virtual-time-budget=10000 --user-data-dir="$dir/profile" "$@"
}
mkdir home profile
chown 1000:1000 home profile
gives 'without its sandbox' 'worker 499500 pixel 255' browse --no-sandbox --dump-dom "file://$dir/page.html"
gives 'with its sandbox' 'worker 499500 pixel 255' browse --dump-dom "file://$dir/page.html"
check 'screenshot' browse --screenshot=shot.png --window-size=640,480 "file://$dir/page.html"
check 'PDF' browse --print-to-pdf=page.pdf "file://$dir/page.html"
