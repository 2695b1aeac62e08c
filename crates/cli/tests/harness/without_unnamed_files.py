# Executes a program for which no filesystem has unnamed files: openat with O_TMPFILE fails as it does on an older overlay.
import ctypes, os, struct, sys

O_TMPFILE, OPENAT, EOPNOTSUPP = 0o20000000, 257, 95
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NR, FLAGS = 0, 32  # where struct seccomp_data has the number of the call and its third argument
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
steps = [
    (LOAD, 0, 0, NR), (EQUAL, 0, 3, OPENAT),
    (LOAD, 0, 0, FLAGS), (ANY_BIT, 0, 1, O_TMPFILE),
    (RETURN, 0, 0, ERRNO | EOPNOTSUPP), (RETURN, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
for arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)]:
    if libc.prctl(*arguments) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
