"""What runs in the sandbox behind ``run_code``: a Python interpreter that keeps its state.

It is sent with ``python3 -c``, so it needs nothing but Python 3.8 there. Requests come as lines of JSON on
standard input, answers leave the same way on what was standard output. The code itself has neither: its
standard input is empty, and what it, or a program that it starts, writes to descriptors 1 and 2 comes through
pipes and is passed on as it comes. A random mark behind the output of each run shows that all of it was read.
"""

SOURCE = r'''
import ast, asyncio, base64, inspect, json, linecache, os, signal, sys, threading, traceback, types

PIECE = 32768
requests = os.fdopen(os.dup(0), "r", encoding="utf-8", newline="\n")
answers = os.dup(1)
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
lock = threading.Lock()


def say(**message):
    line = (json.dumps(message) + "\n").encode()
    with lock:
        while line:
            line = line[os.write(answers, line):]


class Output:
    """One stream of the code, passed on by a thread."""

    def __init__(self, fd, name):
        self.name, self.mark, self.seen = name, None, threading.Event()
        self.source, self.end = os.pipe()  # kept: the code may close its own descriptor
        os.dup2(self.end, fd)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        left = b""
        while True:
            left += os.read(self.source, PIECE)
            mark = self.mark
            if mark and mark in left:
                before, _, left = left.partition(mark)
                self.pass_on(before)
                self.mark = None
                self.seen.set()
            keep = len(mark) - 1 if mark and self.mark else 0  # it may be cut in two
            cut = max(len(left) - keep, 0)
            self.pass_on(left[:cut])
            left = left[cut:]

    def pass_on(self, data):
        if data:
            say(kind="output", stream=self.name, data=base64.b64encode(data).decode())

    def settle(self):
        self.mark = b"\0msb" + os.urandom(24).hex().encode() + b"\0"
        os.write(self.end, self.mark)
        self.seen.wait()
        self.seen.clear()


outputs = [Output(1, "stdout"), Output(2, "stderr")]
sys.stdin = open(0)
sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)
sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)

FORMS = {"html": "_repr_html_", "markdown": "_repr_markdown_", "svg": "_repr_svg_", "latex": "_repr_latex_",
         "javascript": "_repr_javascript_", "png": "_repr_png_", "jpeg": "_repr_jpeg_", "json": "_repr_json_"}


def forms_of(value):
    """Its text, and what it says of itself in other forms, as notebooks ask it."""
    found = {"text": repr(value)}
    for form, method in FORMS.items():
        ask = None if isinstance(value, type) else getattr(value, method, None)
        try:
            made = ask() if callable(ask) else None
            made = made[0] if isinstance(made, tuple) else made
            if isinstance(made, bytes):
                made = base64.b64encode(made).decode()
            if made is not None:
                json.dumps(made)
                found[form] = made
        except Exception:
            pass
    if "json" not in found and isinstance(value, (dict, list)):
        try:
            found["json"] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            pass
    return found


running = False
loop = None


def interrupt(number, frame):
    if running:
        raise KeyboardInterrupt


signal.signal(signal.SIGINT, interrupt)
ours = sys.modules["__main__"]  # kept: these functions live in it
sys.modules["__main__"] = types.ModuleType("__main__")
names = sys.modules["__main__"].__dict__
names["__builtins__"] = __builtins__


def evaluate(node, file, mode):
    global loop
    code = compile(node, file, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        loop = loop or asyncio.new_event_loop()
        value = loop.run_until_complete(value)
    return value


def settle():
    """All that was written so far is on its way."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    for output in outputs:
        output.settle()


def run(source, file):
    tree = compile(source, file, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if tree.body:
        evaluate(tree, file, "exec")
    if last is not None:
        value = evaluate(ast.Expression(last.value), file, "eval")
        if value is not None:
            names["_"] = value
            settle()
            say(kind="result", forms=forms_of(value))


def tried(make):
    """Text that an exception makes of itself, which may fail."""
    try:
        return make()
    except BaseException:
        return "<unprintable>"


def error_of(e, file):
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    e.__traceback__ = trace
    return {"name": type(e).__name__, "value": tried(lambda: str(e)),
            "traceback": tried(lambda: "".join(traceback.format_exception(type(e), e, trace)))}


say(kind="ready", version=sys.version.split()[0])
for count, line in enumerate(requests, 1):
    request = json.loads(line)
    file = "<code %d>" % count
    linecache.cache[file] = (len(request["code"]), None, request["code"].splitlines(True), file)
    failure = None
    try:
        os.environ.update(request["env"])
        running = True
        run(request["code"], file)
        running = False
    except BaseException as e:
        running = False
        failure = error_of(e, file)
    settle()
    say(kind="end", error=failure, count=count)
'''
