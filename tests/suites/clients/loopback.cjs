// Loaded before a server that would listen on every address of the machine: it listens on a free
// port of the loopback instead, and says so in the first line of its output.

const { Server } = require("node:net");

// What else the server has to say belongs to its log.
console.log = console.error;

const listen = Server.prototype.listen;

Server.prototype.listen = function (_port, ...rest) {
  const ready = rest.findLast((argument) => typeof argument === "function");
  return listen.call(this, { host: "127.0.0.1", port: 0 }, () => {
    process.stdout.write(`listening on http://127.0.0.1:${this.address().port}\n`);
    ready?.();
  });
};
