package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl's login methods, for other clusters
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

// The arguments after a component's name belong to the component.

func runControllerManager(args []string) error {
	return runComponent("kube-controller-manager", controllermanager.NewControllerManagerCommand, args)
}

func runScheduler(args []string) error {
	return runComponent("kube-scheduler", func() *cobra.Command { return scheduler.NewSchedulerCommand() }, args)
}

func runComponent(name string, newCommand func() *cobra.Command, args []string) error {
	os.Args = append([]string{name}, args...) // the component logs them
	exitWhenPipeCloses()
	command := newCommand()
	command.SetArgs(args)
	os.Exit(cli.Run(command))
	return nil
}

func runKubectl(args []string) error {
	os.Args = append([]string{"kubectl"}, args...) // kubectl reads plugin names from here
	forgetFlags()
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints it as kubectl does, and exits
	}
	return nil
}

// runKwok does the same as kwok's own main.
func runKwok(args []string) error {
	os.Args = append([]string{"kwok"}, args...) // kwok reads its configuration's path from here
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

// forgetFlags removes the process-wide flags that the Kubernetes components declare, such as `--version`. They conflict
// with flags of components that declare their own.
func forgetFlags() { pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError) }

// exitWhenPipeCloses ends a component when the process at the other end of its stdin ends for any reason. If stdin is a
// terminal or a file, it is not read.
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
