// Asks the built site's own search, as a browser does:  node docs/finds.js SITE
// Each question leads to its page among the first three answers; decision records are never among them.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const QUESTIONS = {
  "go back to an older step": "checkpoints/#go-back-to-an-older-step",
  "change the learning rate": "checkpoints/#change-the-learning-rate-of-a-run",
  "out of memory": "messages/#out-of-memory-killed",
  "Jupyter": "notebooks/",
  "wandb": "recipes/#weights-biases",
  "may still be running": "messages/#attempt-may-still-be-running",
  "does not fit the live objects": "messages/#does-not-fit-the-live-objects",
  "no valid checkpoint": "messages/#no-valid-checkpoint",
  "environment variables": "environment/",
  "exit codes": "commands/#exit-codes",
  "slurm": "cluster/",
  "torch.save": "why/",
  "cold restore": "speed-tables/#beside",
  "HOLDFAST_TAKE_OVER": "environment/#you-may-set-them",
};

const [site] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const answers = [];
let listener;
global.self = global;
global.location = { href: "http://localhost/" };
global.postMessage = (message) => answers.push(message);
global.addEventListener = (kind, handler) => { if (kind === "message") listener = handler; };
vm.runInThisContext(fs.readFileSync(path.join(folder, worker), "utf8"));

async function ask(message) {
  answers.length = 0;
  await listener({ data: message });
  while (!answers.length) await new Promise((resume) => setTimeout(resume, 5));
  return answers.pop();
}

async function main() {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await ask({ type: 0, data: { config: index.config, docs: index.docs, options: { suggest: false } } });
  let wrong = 0;
  for (const [question, page] of Object.entries(QUESTIONS)) {
    const { data } = await ask({ type: 2, data: question });
    const found = data.items.map((group) => group.map((each) => each.location)).slice(0, 3).flat();
    if (!found.includes(page) || found.some((each) => each.startsWith("adr/0"))) {
      wrong += 1;
      console.log(`${question}: expected ${page}, found ${found.slice(0, 8).join(", ") || "nothing"}`);
    }
  }
  console.log(`${Object.keys(QUESTIONS).length - wrong} of ${Object.keys(QUESTIONS).length} questions lead to their page`);
  process.exit(wrong ? 1 : 0);
}

main();
