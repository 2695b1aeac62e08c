import _signal,_socket as S,os,sys
def word(s):
 b=b""
 while len(b)<4:
  p=s.recv(4-len(b))
  if not p:return None
  b+=p
 return int.from_bytes(b,"little")
pid=None
try:
 s=S.socket(S.AF_UNIX,S.SOCK_STREAM);s.settimeout(5);s.connect("/tmp/.saggar-code-%d/python.sock"%os.getuid())
 if int.from_bytes(s.getsockopt(S.SOL_SOCKET,S.SO_PEERCRED,12)[4:8],"little")==os.getuid():
  told=b"\0".join([os.getcwdb()]+[k+b"="+v for k,v in os.environb.items()])
  s.sendmsg([len(told).to_bytes(4,"little")],[(S.SOL_SOCKET,S.SCM_RIGHTS,b"".join(n.to_bytes(4,sys.byteorder) for n in range(3)))])
  s.sendall(told);pid=word(s)
except OSError:pass
if not pid:os.execvp("python3",["python3","-c",sys.argv[1]])
def interrupt(*_):
 try:os.killpg(pid,2)
 except OSError:pass
_signal.signal(2,interrupt);s.settimeout(None)
status=word(s)
if status is None:os._exit(71)
if status&127:
 _signal.signal(status&127,_signal.SIG_DFL) if status&127 not in(9,19) else None
 os.kill(os.getpid(),status&127)
os._exit(status>>8&255)
