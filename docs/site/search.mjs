// Asks the search of the built site, as its own worker answers in a browser.
//   node search.mjs build/site '["first question", "second"]'   prints the first pages of each as JSON
import { readFileSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { runInNewContext } from "node:vm"

const [site, questions] = [process.argv[2], JSON.parse(process.argv[3])]
const [SETUP, QUERY] = [0, 2]
const workers = join(site, "assets", "javascripts", "workers")
const worker = readdirSync(workers).find(name => /^search\..*\.js$/.test(name))
const index = JSON.parse(readFileSync(join(site, "search", "search_index.json"), "utf8"))

let receive
let answered
const scope = {
  addEventListener: (_, listener) => { receive = listener },
  postMessage: message => answered(message),
  console,
}
scope.self = scope
runInNewContext(readFileSync(join(workers, worker), "utf8"), scope)

const ask = (type, data) =>
  new Promise(resolve => { answered = resolve; receive({ data: { type, data } }) })

await ask(SETUP, { ...index, options: { suggest: false } })
const found = []
for (const question of questions) {
  const answer = await ask(QUERY, question)
  const pages = answer.data.items.map(group => group[0].location.split("#")[0])
  found.push(pages.slice(0, 5))
}
console.log(JSON.stringify(found))
