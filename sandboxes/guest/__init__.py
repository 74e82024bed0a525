"""The code that runs inside a box: a worker, started once, which answers the host's requests.

These files are sent into the box as text (`sandboxes/worker/program.py`) and run there by the
Python that it has, 3.8 or newer. So they import nothing but the standard library and each other.

    protocol      frames between the host and the worker; the host uses it too
    worker        requests in, answers out, one call at a time
    loop          waiting for descriptors and times
    spawn         starting a program
    started       programs that run beside the calls
    processes     the processes below the worker: reaping, finding and killing them
    capture       output, read with bounded memory
    session       the Python session, as the worker sees it
    interpreter   the Python session, from the inside
    files         reading and writing files
    confine       what it forbids itself and what it starts, if no container does

The worker and the guest's code share a user id, so the guest could write to everything that the
worker leaves within reach. Therefore:

- before anything else runs in the box, the worker is not dumpable (`PR_SET_DUMPABLE` 0): no process
  of the same user may ptrace it or open its `/proc/PID/fd` or `/proc/PID/mem`;
- the connection's descriptors are closed on exec, and closed in the Python session, which is a
  child of its own;
- each answer carries the nonce of its request, which the host draws and the guest never sees: the
  session is forked before the request comes, and when requests that wait have been answered.

In a container, and in any box with process ids of its own, the worker is process 1, which nobody in
the box can kill. Elsewhere each call runs in a Landlock domain below the worker's.
"""
