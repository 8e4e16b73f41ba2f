// The parts that turn an API server into a live cluster: controllers, a scheduler, simulated nodes, and kubectl,
// in one binary. See ../README.md.
package main

import "deltabus.dev/cluster/internal/tool"

// commands maps a sub-command to its function, which gets the remaining arguments.
var commands = map[string]func(args []string) error{
	"controllers":             runControllers,
	"kube-controller-manager": runControllerManager,
	"kube-scheduler":          runScheduler,
	"kubectl":                 runKubectl,
	"kwok":                    runKwok,
	"up":                      runUp,
}

func main() { tool.Main("living", commands) }
