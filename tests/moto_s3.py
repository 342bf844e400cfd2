"""moto's S3 server on a free port of loopback, which it prints. moto looks and writes in two steps; S3 in one."""

import os
import sys
import time
from threading import Lock, Thread

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

conditional = Lock()
application = DomainDispatcherApplication(create_backend_app)


def answer(environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ:
        return application(environ, start_response)
    with conditional:
        return application(environ, start_response)


def end_with(parent):
    """A test process that was killed has stopped nothing."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
server = make_server("127.0.0.1", int(sys.argv[1]), answer, threaded=True, request_handler=MotoRequestHandler)
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
server.serve_forever()
