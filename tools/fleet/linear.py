"""Is a recorded history linearizable? A small checker (Wing and Gong 1993, with Lowe's memory of visited states).

A history is a list of operations on one object, each with the moments of its call and its answer. It is
linearizable when every operation can be given one instant between both, so that a single machine doing them in that
order would have answered the same. An operation whose outcome is unknown may have happened at any moment after its
call, or never.
"""

from __future__ import annotations

INFINITE = float("inf")


class Operation:
    """One call: `what` was asked, `answer` given (None: unknown), between `called` and `answered` (seconds)."""

    __slots__ = ("answer", "answered", "called", "what", "who")

    def __init__(self, who, what, called, answered=INFINITE, answer=None):
        self.who = who
        self.what = what
        self.called = called
        self.answered = INFINITE if answer is None else answered
        self.answer = answer

    def __repr__(self):
        return f"{self.who}: {self.what} -> {self.answer} [{self.called:.4f}, {self.answered:.4f}]"


def claim(state, operation):
    """A claim that one owner holds at a time: state is the holder or None. Returns (answer, next state)."""
    if operation.what == "claim":
        return ("held", state) if state is not None else ("ok", operation.who)
    if operation.what == "release":
        return ("ok", None) if state == operation.who else ("not yours", state)
    return (state or "free", state)


def receipt(state, operation):
    """A receipt that is spent once: state is who spent it, or None."""
    return ("spent", state) if state is not None else ("ok", operation.who)


def linearizable(history, model, start=None):
    """Whether `history` has an order that `model` explains; returns that order, or None."""
    operations = sorted(history, key=lambda each: each.called)
    count = len(operations)
    done = 0  # a bit for each operation that has its place
    state = start
    order = []
    seen = set()
    stack = []  # (done, state, next index to try) before each step of `order`
    at = 0
    while True:
        if all(done >> i & 1 or operations[i].answer is None for i in range(count)):
            return [operations[i] for i in order]
        # Nothing may be ordered after an answer that is still to be explained.
        limit = min(operations[i].answered for i in range(count) if not done >> i & 1)
        moved = False
        for i in range(at, count):
            each = operations[i]
            if each.called > limit:
                break
            if done >> i & 1:
                continue
            answer, after = model(state, each)
            if each.answer is not None and each.answer != answer:
                continue
            key = (done | 1 << i, after)
            if key in seen:
                continue
            seen.add(key)
            stack.append((done, state, i + 1))
            order.append(i)
            done, state, at = done | 1 << i, after, 0
            moved = True
            break
        if moved:
            continue
        if not stack:
            return None
        done, state, at = stack.pop()
        order.pop()
