"""A hub on this machine for tests: the two routes that are used of Hugging Face's, and a second host
that stores large files. Everything that goes wrong on a network can be asked for."""

import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """`files`: bytes by name. Those of `large` lie on the other host."""

    def __init__(self, files, large=(), commit=None, gated=False, private=False):
        self.files, self.large, self.gated, self.private = dict(files), set(large), gated, private
        self.commit = commit or hashlib.sha1(repr(sorted(files)).encode()).hexdigest()
        self.refs = {"main": self.commit}

    def hash(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name in self.large else git_hash(data)


faults_taken = [0]  # by the hubs of all tests


class Hub:
    """Both hosts. `log` has (host, method, path, headers) of every request. `faults` has lists of
    actions, each for one request: by a file's name for its contents, by ("HEAD", name) for its
    header, and by "/list" for a repository's:

        ("status", 503, {"Retry-After": "0"})     an error
        ("break", n)                              the connection ends after n bytes of the body
        ("drip", seconds)                         a byte each so many seconds
        ("body", data)                            another answer of status 200
        ("hold", n, event)                        after n bytes nothing comes until the event, and then
                                                  the connection ends
        ("other", data)                           other contents of the same length
        ("shift",)                                another range than was asked for
    """

    def __init__(self, certificate=None):
        self.repos, self.faults, self.log, self.moved = {}, {}, [], {}
        self.token = "hf_secret"
        self.ranges, self.rate, self.signature, self.part_limit = True, 0, 1, None
        self.etag = None
        self.lock = threading.Lock()
        self.certificate, scheme = certificate, "https" if certificate else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self.serve('hub')}"
        self.storage = f"{scheme}://localhost:{self.serve('store')}"

    def serve(self, host):
        """The port of a new server."""
        handler = type("Handler", (Handler,), {"hub": self, "host": host})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05},
                         daemon=True).start()
        return server.server_address[1]

    def take_fault(self, name, method):
        with self.lock:
            waiting = self.faults.get(("HEAD", name) if method == "HEAD" else name)
            faults_taken[0] += bool(waiting)
            return waiting.pop(0) if waiting else None

    def requests(self, part="", method=None):
        return [r for r in self.log if part in r[2] and method in (None, r[1])]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub, host = None, None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def handle(self):
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass  # the client has gone, as clients do here

    def answer(self):
        with self.hub.lock:
            self.hub.log.append((self.host, self.command, self.path, dict(self.headers)))
        path = urllib.parse.unquote(self.path)
        if self.host == "store":
            self.answer_store(path)
        else:
            self.answer_hub(path)

    def send(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message):
        self.send(status, {"X-Error-Code": code, "X-Error-Message": message}, b"refused")

    def fail(self, fault):
        """Whether the fault is the whole answer."""
        if fault and fault[0] == "status":
            self.send(fault[1], fault[2], b"busy")
            return True
        if fault and fault[0] == "body":
            self.send(200, {"Content-Type": "application/json"}, fault[1])
            return True
        return False

    # ---- the hub

    def answer_hub(self, path):
        tree = re.fullmatch(r"/api/models/(.+?)/tree/([0-9a-f]+)(\?.*)?", path)
        if tree:
            self.answer_tree(self.hub.repos[tree[1]])
            return
        if path.startswith("/api/models?"):
            known = self.headers.get("Authorization") in (None, f"Bearer {self.hub.token}")
            self.send(200 if known else 401, {"Content-Type": "application/json"}, b"[]")
            return
        listing = re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path)
        file = re.fullmatch(r"/([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", path)
        match = listing or file
        if not match:
            self.refuse(404, "", "no such page")
            return
        name, revision = match[1], match[2]
        if name in self.hub.moved:
            self.send(307, {"Location": self.path.replace(name, self.hub.moved[name], 1)})
            return
        repo = self.hub.repos.get(name)
        logged_in = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if not repo or (repo.private and not logged_in):
            self.refuse(401, "RepoNotFound", "Repository not found")
            return
        commit = repo.refs.get(revision, revision if revision == repo.commit else None)
        if not commit:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif listing:
            fault = self.hub.take_fault("/list", self.command)
            names = [{"rfilename": n} for n in repo.files]
            body = {"id": name, "sha": commit, "siblings": names, "cardData": {"t": "a\n\"b\""}}
            if fault and fault[0] == "drip":
                self.send_head(200, {}, 1 << 20)
                self.drip(bytes(1 << 20), fault[1])
            elif not self.fail(fault):
                self.send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        elif repo.gated and not logged_in:
            self.refuse(403 if repo.gated == 403 else 401, "GatedRepo", "Access is restricted")
        else:
            self.answer_file(repo, file[3])

    def answer_tree(self, repo):
        """What Hugging Face's own client asks for beside the two routes."""
        entries = [{"type": "file", "path": n, "size": len(data), "oid": git_hash(data),
                    **({"lfs": {"oid": repo.hash(n), "size": len(data), "pointerSize": 130}}
                       if n in repo.large else {})} for n, data in repo.files.items()]
        self.send(200, {"Content-Type": "application/json"}, json.dumps(entries).encode())

    def answer_file(self, repo, name):
        if name not in repo.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{repo.hash(name)}"',
                   "Accept-Ranges": "bytes"}
        if self.hub.etag:
            headers["ETag"] = self.hub.etag
        if name in repo.large:
            if self.fail(self.hub.take_fault(name, "HEAD")):
                return
            headers["X-Linked-Etag"] = headers["ETag"]
            headers["X-Linked-Size"] = str(len(repo.files[name]))
            headers["Location"] = (f"{self.hub.storage}/{urllib.parse.quote(name)}"
                                   f"?signature={self.hub.signature}")
            self.send(302, headers)
        else:
            self.send_body(name, repo.files[name], headers)

    # ---- the host that stores

    def answer_store(self, path):
        name, _, query = path[1:].partition("?")
        if query != f"signature={self.hub.signature}":
            self.refuse(403, "", "the link has expired")
            return
        data = next(r.files[name] for r in self.hub.repos.values() if name in r.large)
        self.send_body(name, data, {"ETag": '"that-of-the-store"'})

    def send_body(self, name, data, headers):
        fault = self.hub.take_fault(name, self.command)
        if self.fail(fault):
            return
        if fault and fault[0] == "other":
            data = fault[1]
        status, asked = 200, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and self.hub.ranges:
            first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
            first += fault == ("shift",)
            headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}
            status, data = 206, data[first:last + 1]
        self.send_head(status, headers, len(data))
        if self.command == "HEAD":
            return
        if fault and fault[0] == "drip":
            self.drip(data, fault[1])
            return
        limit = fault[1] if fault and fault[0] in ("break", "hold") else len(data)
        self.write(data[:limit])
        if limit < len(data):
            if fault[0] == "hold":
                fault[2].wait()
            self.close_connection = True

    def send_head(self, status, headers, length):
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def drip(self, data, seconds):
        for i in range(len(data)):
            self.wfile.write(data[i:i + 1])
            self.wfile.flush()
            time.sleep(seconds)

    def write(self, data):
        step = 1 << 16
        for at in range(0, len(data), step):
            self.wfile.write(data[at:at + step])
            if self.hub.rate:
                time.sleep(step / self.hub.rate)
        self.wfile.flush()
