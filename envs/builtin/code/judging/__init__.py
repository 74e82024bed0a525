"""What runs in boxes to grade: what tests in one, and what the policy made in another.

These files are sent to the boxes as they are, import nothing but the standard library and each
other, and run under any Python from 3.8 on. To grade code, texts of `wire.py` go between two boxes,
by way of the host, and nothing else:

    wire         values <-> text; nothing that is decoded can run anything
    candidate    beside the policy's code: calls its functions
    equality     beside the tests: what `==` means there
    judge        beside the tests: runs them, with functions that ask for a call

To grade a folder, its files go from the policy's box to a fresh one:

    folder       reads the one, and writes the other

Left out: the host's side, which is `gymnast.envs.builtin.code.grading` and
`gymnast.envs.boxes.carried`.
"""
