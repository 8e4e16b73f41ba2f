// A Kubernetes API server for tests, in one binary: each sub-command is one component or one tool. See README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to the function that runs it with the arguments that follow.
// What makes a cluster live is another binary, in living/: not every test pays for it.
var commands = map[string]func(args []string) error{
	"apiserver": runAPIServer,
	"apply":     runApply,
	"churn":     runChurn,
	"compact":   runCompact,
	"dump":      runDump,
	"observe":   runObserve,
	"request":   runRequest,
}

func main() { tool.Main("cluster", commands) }
