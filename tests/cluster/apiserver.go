package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"deltabus.dev/cluster/internal/tool"
)

const (
	readyTimeout = 2 * time.Minute
	stopTimeout  = time.Second
)

// runAPIServer runs etcd and kube-apiserver in this process until SIGTERM, or until stdin closes, so that a killed parent
// leaves no orphan. Once the server is ready, it prints its addresses as one line.
func runAPIServer(args []string) error {
	flags := flag.NewFlagSet("apiserver", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: cluster apiserver --data-dir DIR [FLAGS] [-- KUBE-APISERVER FLAGS]")
		flags.PrintDefaults()
	}
	dataDir := flags.String("data-dir", "", "where all of the cluster lies; a second run with the same directory is a restart")
	securePort := flags.Int("secure-port", 0, "port of the API server on 127.0.0.1 (0: as in the last run, else a free one)")
	etcdPort := flags.Int("etcd-port", 0, "port for etcd's clients on 127.0.0.1 (0: as in the last run, else a free one)")
	detached := flags.Bool("detached", false, "go on when stdin closes")
	serviceAccounts := flags.Bool("service-accounts", false, "pods need their service account: something has to make the accounts, as `living controllers` does")
	flags.Parse(args)
	if *dataDir == "" {
		return errors.New("--data-dir is missing")
	}
	absolute, err := filepath.Abs(*dataDir)
	if err != nil {
		return err
	}
	h := home(absolute)
	info, err := h.prepare(*securePort, *etcdPort)
	if err != nil {
		return err
	}
	etcd, err := startEtcd(h, info)
	if err != nil {
		return fmt.Errorf("failed to start etcd: %w", err)
	}
	command := app.NewAPIServerCommand() // installs the SIGTERM handler that RequestShutdown needs
	serverFlags := apiServerFlags(h, info)
	if !*serviceAccounts {
		serverFlags = append(serverFlags, "--disable-admission-plugins=ServiceAccount")
	}
	command.SetArgs(append(serverFlags, flags.Args()...))
	go forceStopAfterSignal()
	if !*detached {
		go stopWhenStdinCloses()
	}
	go announceWhenReady(info)
	code := cli.Run(command)
	etcd.Close()
	os.Exit(code)
	return nil
}

func apiServerFlags(h home, info clusterInfo) []string {
	return []string{
		"--etcd-servers=" + info.Etcd,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(info.SecurePort),
		"--cert-dir=" + h.path("certs"),
		"--tls-cert-file=" + h.path(serverCertFile),
		"--tls-private-key-file=" + h.path(serverKeyFile),
		"--token-auth-file=" + h.path(tokensFile),
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + h.path(serviceAccountFile),
		"--service-account-signing-key-file=" + h.path(serviceAccountFile),
		"--endpoint-reconciler-type=none", // no clean-up at the end: stops at once
	}
}

func stopWhenStdinCloses() {
	io.Copy(io.Discard, os.Stdin)
	genericapiserver.RequestShutdown()
	forceStop()
}

func forceStopAfterSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
	forceStop()
}

// forceStop ends the process after a short time in which clients see their watches end. An orderly stop would also wait
// seconds for idle connections. etcd's data are as safe as after a kill, because it logs before it answers.
func forceStop() {
	time.Sleep(stopTimeout)
	os.Exit(0)
}

func announceWhenReady(info clusterInfo) {
	if err := waitUntilReady(info); err != nil {
		fmt.Fprintf(os.Stderr, "cluster apiserver: %v\n", err)
		os.Exit(1)
	}
	if err := tool.PrintJSON(info); err != nil {
		os.Exit(1) // the listeners are closed
	}
}

func waitUntilReady(info clusterInfo) error {
	config, err := loadConfig(info.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	// A controller inside the server creates the namespace, and /readyz does not wait for it.
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		for !answersOK(ctx, client, info.URL+path) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s did not answer 200 within %s", path, readyTimeout)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func answersOK(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}
