"""Programs in Python for pods that send and answer datagrams.

`python -c` runs them in the image of `e2e.bridge_image`; clients read their arguments from the
command line. Clients repeat a datagram that was not answered, as clients of UDP do.
"""

from __future__ import annotations

PYTHON = "/usr/local/bin/python3"
#: So many clients, each with a port of its own, ask for the pod's name so many times.
ASK = """
import json, socket, sys, time

host, clients, times, patience = json.loads(sys.argv[1])
deadline = time.monotonic() + patience
address = socket.gethostbyname(host), 80
answers = []
for _ in range(clients):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(address)
    sock.settimeout(1)
    got = []
    while len(got) < times and time.monotonic() < deadline:
        try:
            sock.send(b"hostname")
            got.append(sock.recv(1 << 16).decode())
        except ConnectionRefusedError:
            time.sleep(0.2)
        except TimeoutError:
            pass
    answers.append(got)
print(json.dumps(answers))
"""
#: One client asks ten times a second until its standard input has ended and it has been answered
#: once more. Prints a line at its first answer, and at the end who answered how often, and how long
#: the last answer took to come.
KEEP_ASKING = """
import json, select, socket, sys, time

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect((socket.gethostbyname(sys.argv[1]), 80))
sock.setblocking(False)
answers, end, last = {}, None, None
while last is None and (end is None or time.monotonic() - end < 60):
    if end is not None:
        time.sleep(0.1)
    elif select.select([sys.stdin], [], [], 0.1)[0]:
        end = time.monotonic()
    try:
        sock.send(b"hostname")
        while True:
            name = sock.recv(1 << 16).decode()
            if not answers:
                print("answered", flush=True)
            answers[name] = answers.get(name, 0) + 1
            if end is not None:
                last = time.monotonic() - end
    except OSError:
        pass
print(json.dumps([answers, last]))
"""
#: A pod that answers each datagram with the same one.
ECHO = """
import socket

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 8081))
while True:
    data, client = sock.recvfrom(1 << 16)
    sock.sendto(data, client)
"""
#: Sends a datagram of each size until the answer is the same one; prints the sizes.
LONG = """
import json, os, socket, sys

host, sizes = json.loads(sys.argv[1])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect((socket.gethostbyname(host), 80))
sock.settimeout(1)
for size in sizes:
    body = os.urandom(size)
    for _ in range(60):
        try:
            sock.send(body)
            answer = sock.recv(1 << 16)
            while len(answer) != size:  # a late one
                answer = sock.recv(1 << 16)
            assert answer == body
            print(size)
            break
        except OSError:
            pass
"""
#: So many clients at once; prints how many were answered.
MANY = """
import json, select, socket, sys, time

host, clients, patience = json.loads(sys.argv[1])
deadline = time.monotonic() + patience
address = socket.gethostbyname(host), 80
waiting = {}
for number in range(clients):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(address)
    waiting[sock] = str(number).encode()
answered = []
while waiting and time.monotonic() < deadline:
    for sock, body in waiting.items():
        sock.send(body)
    repeat = time.monotonic() + 2
    while waiting and time.monotonic() < repeat:
        for sock in select.select([*waiting], [], [], 0.2)[0]:
            assert sock.recv(1 << 16) == waiting[sock]
            answered.append((sock, waiting.pop(sock)))
print(len(answered))
"""
