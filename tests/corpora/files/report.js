// pass in a tree, an object with a list of calls, and a password
const { log, output } = require('tools')

const report = (npm, auditLevel) => {
  printReport2(npm, auditLevel)
  callNumber(npm, 3074185296)
  return { username: basic[0], password: basic[1] }
}

module.exports = { report, Level2 }
