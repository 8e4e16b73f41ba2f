// A Kubernetes API server for tests, in one binary: each sub-command is one component or one tool. See README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to its function, which gets the remaining arguments.
// Components of a live cluster are in another binary, in living/, because not every test needs them.
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
