// A NATS server for tests, and tools for its tests, in one binary. See ../README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to its function, which gets the remaining arguments.
var commands = map[string]func(args []string) error{
	"bench":  runBench,
	"keys":   runKeys,
	"server": runServer,
}

func main() { tool.Main("nats", commands) }
