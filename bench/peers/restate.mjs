// Restate beside us: a service whose every step is one durable `ctx.run` that makes one HTTP call. Prints its port.
import http from "node:http";
import * as restate from "@restatedev/restate-sdk";

const tool = new URL(process.argv[2]);
// A connection is kept for the next call, as ours are.
const agent = new http.Agent({ keepAlive: true, maxSockets: 1024 });

function call(key, body) {
  return new Promise((resolve, reject) => {
    const text = JSON.stringify(body);
    const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(text), "idempotency-key": key };
    const request = http.request(tool, { agent, method: "POST", headers }, (response) => {
      let answer = "";
      response.setEncoding("utf8");
      response.on("data", (piece) => (answer += piece));
      response.on("end", () => (response.statusCode === 200 ? resolve(answer) : reject(new Error(answer))));
    });
    request.on("error", reject);
    request.end(text);
  });
}

const steps = restate.service({
  name: "steps",
  handlers: {
    drive: async (ctx, { count }) => {
      let last = "";
      for (let index = 0; index < count; index++) {
        last = await ctx.run(`step ${index}`, () => call(`${ctx.request().id}.${index}`, index));
      }
      return last;
    },
  },
});

const port = await restate.serve({ services: [steps], port: 0 });
console.log(port);
