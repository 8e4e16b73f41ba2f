package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	nodestages "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podstages "sigs.k8s.io/kwok/kustomize/stage/pod/fast"

	"deltabus.dev/cluster/internal/tool"
)

// restartPause is the time between the exit of a component and its restart.
const restartPause = time.Second

// runControllers adds controllers and nodes to a running API server, until SIGTERM or until stdin closes. It
// prints one JSON line once all nodes are ready.
func runControllers(args []string) error {
	flags := flag.NewFlagSet("controllers", flag.ExitOnError)
	dataDir := flags.String("data-dir", "", "of the API server: `cluster apiserver --data-dir DIR --service-accounts`")
	nodes := flags.Int("nodes", 5, "how many nodes there shall be")
	flags.Parse(args)
	ctx, stop := untilTold()
	defer stop()
	c, err := newControllers(*dataDir)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := c.start(ctx, *nodes); err != nil {
		return err
	}
	if err := tool.PrintJSON(map[string]any{"kubeconfig": c.kubeconfig(), "nodes": *nodes}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// untilTold returns a context that ends with SIGTERM, with ctrl-c, or when a pipe at stdin closes, so that a killed parent
// leaves no orphan.
func untilTold() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if stdin, err := os.Stdin.Stat(); err == nil && stdin.Mode()&os.ModeNamedPipe != 0 {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	return ctx, stop
}

// controllers are the processes beside the API server; each is restarted whenever it exits.
type controllers struct {
	dataDir string
	binary  string
	ctx     context.Context
	cancel  context.CancelFunc
	abort   context.CancelCauseFunc // aborts the start
	running sync.WaitGroup
}

func newControllers(dataDir string) (*controllers, error) {
	if dataDir == "" {
		return nil, errors.New("--data-dir is missing")
	}
	absolute, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &controllers{dataDir: absolute, binary: binary, ctx: ctx, cancel: cancel}, nil
}

func (c *controllers) path(name string) string { return filepath.Join(c.dataDir, name) }

func (c *controllers) kubeconfig() string { return c.path("admin.kubeconfig") }

// start starts all processes and returns when all nodes are ready for pods.
func (c *controllers) start(ctx context.Context, nodes int) error {
	ctx, c.abort = context.WithCancelCause(ctx)
	defer c.abort(nil)
	stages := []string{
		nodestages.DefaultNodeInit, heartbeat.DefaultNodeHeartbeatWithLease,
		podstages.DefaultPodReady, podstages.DefaultPodComplete, podstages.DefaultPodDelete,
	}
	if err := os.WriteFile(c.path("kwok.yaml"), []byte(strings.Join(stages, "\n---\n")), 0o600); err != nil {
		return err
	}
	kubeconfig := "--kubeconfig=" + c.kubeconfig()
	c.keepRunning("kube-controller-manager", kubeconfig,
		"--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file="+c.path("service-account.key"), "--root-ca-file="+c.path("ca.crt"),
		"--use-service-account-credentials=false", "--kube-api-qps=500", "--kube-api-burst=1000",
		"--node-monitor-grace-period=300s") // a busy machine must not make nodes unready
	c.keepRunning("kube-scheduler", kubeconfig,
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000")
	c.keepRunning("kwok", kubeconfig,
		"--config="+c.path("kwok.yaml"), "--manage-all-nodes=true", "--cidr=10.244.0.0/16",
		"--node-lease-duration-seconds=40") // without leases the nodes become unready after 50 seconds
	return ensureNodes(ctx, c.kubeconfig(), nodes)
}

// keepRunning runs a component in a separate process until stop. Its log is a file in the data directory. If it exits
// during the start, the start fails; later it is restarted.
func (c *controllers) keepRunning(name string, args ...string) {
	c.running.Go(func() {
		for c.ctx.Err() == nil {
			err := c.run(name, args)
			if c.ctx.Err() == nil {
				err = fmt.Errorf("%s ended (%w): see %s", name, err, c.path(name+".log"))
				c.abort(err)
				fmt.Fprintln(os.Stderr, err)
			}
			select {
			case <-c.ctx.Done():
			case <-time.After(restartPause):
			}
		}
	})
}

func (c *controllers) run(name string, args []string) error {
	log, err := os.OpenFile(c.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.CommandContext(c.ctx, c.binary, append([]string{name}, args...)...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = ownGroup()
	if _, err := command.StdinPipe(); err != nil { // the end of this process closes it
		return err
	}
	return command.Run()
}

// ownGroup keeps a terminal's ctrl-c from a child, because this process stops its children in order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stop kills all running processes and waits until they have exited.
func (c *controllers) stop() {
	c.cancel()
	c.running.Wait()
}
