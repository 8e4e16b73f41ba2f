// A NATS server for tests, and what its tests need beside it, in one binary. See ../README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to the function that runs it with the arguments that follow.
var commands = map[string]func(args []string) error{
	"bench":  runBench,
	"keys":   runKeys,
	"server": runServer,
}

func main() { tool.Main("nats", commands) }
