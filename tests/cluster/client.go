package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	retryPause   = 100 * time.Millisecond
	retryTimeout = 90 * time.Second // a restart of the server, on a busy machine
)

// clientFlags adds the flags that select the server and the user.
func clientFlags(flags *flag.FlagSet) func() (*rest.Config, error) {
	dataDir := flags.String("data-dir", "", "the cluster's data directory")
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig to use instead of the admin's in the data directory")
	return func() (*rest.Config, error) {
		if *kubeconfig != "" {
			return loadConfig(*kubeconfig)
		}
		if *dataDir == "" {
			return nil, errors.New("--data-dir or --kubeconfig is missing")
		}
		return loadConfig(home(*dataDir).path("admin.kubeconfig"))
	}
}

// loadConfig reads a kubeconfig, without client-go's limit of a few requests per second.
func loadConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.UserAgent = "cluster"
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// newMapper requests all types of the server.
func newMapper(config *rest.Config) (meta.RESTMapper, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(client)
	if err != nil {
		return nil, err
	}
	return restmapper.NewDiscoveryRESTMapper(groups), nil
}

// retry calls attempt until it succeeds or fails permanently.
func retry(ctx context.Context, retries func(), attempt func() error) error {
	deadline := time.Now().Add(retryTimeout)
	for {
		err := attempt()
		if err == nil || !isTransient(err) || ctx.Err() != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave up after %s: %w", retryTimeout, err)
		}
		retries()
		time.Sleep(retryPause)
	}
}

// isTransient reports whether an error is temporary: the answer of a stopping, absent or starting API server to an
// administrator.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		var noAnswer *url.Error // refused, reset, timed out
		return errors.As(err, &noAnswer) || strings.Contains(err.Error(), "reading response body")
	}
	switch {
	case apierrors.IsNotFound(err):
		// "404 page not found" without a Status: a custom resource whose definition the server has not read yet.
		return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return true // "not yet ready to handle request"
	default:
		return status.Status().Code == 429 || status.Status().Code >= 500
	}
}
