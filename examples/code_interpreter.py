#!/usr/bin/env python3
"""A code interpreter: a model writes Python, a sandbox runs it, the model sees the output.

The interpreter is one process in the guest that lives through the whole conversation, so that variables
are kept from step to step. A step that takes too long ends the interpreter, and nothing else. Instead of a
model there is a script of what one might write; replace `model()` to use a real one.
"""
import argparse
import asyncio
import json
import sys
import uuid

import msb

# Runs in the guest: reads one JSON string of code per line, runs it, answers with one line of JSON.
INTERPRETER = r"""
import ast, contextlib, io, json, sys, traceback
answers, scope = sys.stdout, {"__name__": "__main__"}

def run(code):
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<step>", "exec"), scope)
    if last is not None:  # like a prompt: the value of the last expression is shown
        value = eval(compile(ast.Expression(last.value), "<step>", "eval"), scope)
        if value is not None:
            print(repr(value))

for line in sys.stdin:
    out, ok = io.StringIO(), True
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            run(json.loads(line))
        except BaseException:
            ok = False
            traceback.print_exc(limit=-1)
    answers.write(json.dumps({"ok": ok, "output": out.getvalue()[-10000:]}) + "\n")
    answers.flush()
"""


class Interpreter:
    """The process in the guest; started again when it has ended."""

    def __init__(self, sandbox):
        self.sandbox, self.process, self.chunks = sandbox, None, None

    async def start(self):
        self.process = await self.sandbox.stream("python3", ["-u", "-c", INTERPRETER], stdin=True)
        self.chunks = self.process.__aiter__()

    async def answer(self):
        text = ""
        while not text.endswith("\n"):
            text += (await self.chunks.__anext__()).text
        return json.loads(text)

    async def run(self, code, timeout):
        if self.process is None:
            await self.start()
        await self.process.write_stdin(json.dumps(code) + "\n")
        try:
            return await asyncio.wait_for(self.answer(), timeout)
        except asyncio.TimeoutError:
            await self.close()
            return {"ok": False, "output": f"killed after {timeout:g} s; all variables are gone\n"}
        except StopAsyncIteration:
            await self.close()
            return {"ok": False, "output": "the interpreter ended; all variables are gone\n"}

    async def close(self):
        if self.process is not None:
            await self.process.close()
            self.process = None


def model(history):
    """What a model might answer to what it has seen so far; None when it is done."""
    script = [
        "primes = [n for n in range(2, 60) if all(n % d for d in range(2, n))]\nlen(primes)",
        "sum(primes) / len(prime)",
        "sum(primes) / len(primes)",
        "while True: pass",
        "'primes' in globals()",
    ]
    return script[len(history)] if len(history) < len(script) else None


async def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--image", default="python:3.11-slim")
    ap.add_argument("--timeout", type=float, default=10.0, help="seconds for each step")
    args = ap.parse_args()
    spec = msb.SandboxSpec(name=f"interpreter-{uuid.uuid4().hex[:8]}", image=args.image)
    async with await msb.SandboxClient().create(spec) as sandbox:
        interpreter, history = Interpreter(sandbox), []
        await interpreter.start()
        while (code := model(history)) is not None:
            answer = await interpreter.run(code, args.timeout)
            history.append((code, answer))
            print(">>> " + code.replace("\n", "\n... "))
            print(answer["output"], end="", flush=True)
        await interpreter.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
