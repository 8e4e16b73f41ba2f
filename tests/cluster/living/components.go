package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's ways to log in, for clusters other than ours
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// What follows the name of a component are that component's own arguments.

func runControllerManager(args []string) error {
	return runComponent("kube-controller-manager", controllermanager.NewControllerManagerCommand, args)
}

func runScheduler(args []string) error {
	return runComponent("kube-scheduler", func() *cobra.Command { return scheduler.NewSchedulerCommand() }, args)
}

func runComponent(name string, newCommand func() *cobra.Command, args []string) error {
	os.Args = append([]string{name}, args...) // it logs them
	exitWhenPipeCloses()
	command := newCommand()
	command.SetArgs(args)
	os.Exit(cli.Run(command))
	return nil
}

func runKubectl(args []string) error {
	os.Args = append([]string{"kubectl"}, args...) // where it looks for plugins' names
	forgetFlags()
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints it as kubectl does, and exits
	}
	return nil
}

// runKwok does what kwok's own main does.
func runKwok(args []string) error {
	os.Args = append([]string{"kwok"}, args...) // where it finds its configuration's path
	exitWhenPipeCloses()
	forgetFlags()
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		return err
	}
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	return command.ExecuteContext(ctx)
}

// forgetFlags drops the flags that the Kubernetes components declare for the whole process, `--version` among them:
// those who know their own would trip over them.
func forgetFlags() { pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError) }

// exitWhenPipeCloses ends a component together with the process that holds the other end of its stdin, however that
// one ends. From a terminal or a file nothing is read.
func exitWhenPipeCloses() {
	stdin, err := os.Stdin.Stat()
	if err != nil || stdin.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}
