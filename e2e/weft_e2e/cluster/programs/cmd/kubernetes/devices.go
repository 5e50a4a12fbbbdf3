package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	devices "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// newSimulatedDevicesCommand announces devices that do not exist to the kubelet, over the same
// protocol as a vendor's device plugin. So the kubelet counts, assigns and checkpoints them as it
// does real ones, also across its own restarts; no API object is patched by hand.
func newSimulatedDevicesCommand() *cobra.Command {
	directory := devices.DevicePluginPath
	command := &cobra.Command{
		Use:          "simulated-devices RESOURCE=COUNT...",
		Args:         cobra.MinimumNArgs(1),
		SilenceUsage: true,
		RunE: func(command *cobra.Command, args []string) error {
			return announce(command.Context(), directory, args)
		},
	}
	command.Flags().StringVar(&directory, "directory", directory, "folder of the kubelet's plugin sockets")
	return command
}

func announce(ctx context.Context, directory string, resources []string) error {
	registrar := filepath.Join(directory, filepath.Base(devices.KubeletSocket))
	generation, err := awaitSocket(registrar, time.Minute)
	if err != nil {
		return err
	}
	for _, argument := range resources {
		resource, number, _ := strings.Cut(argument, "=")
		count, err := strconv.Atoi(number)
		if err != nil || count < 0 {
			return fmt.Errorf("%q: expected RESOURCE=COUNT", argument)
		}
		if err := serve(ctx, directory, registrar, resource, count); err != nil {
			return fmt.Errorf("%s: %w", resource, err)
		}
	}
	// A kubelet that starts anew empties the folder and makes a new socket: whoever supervises
	// this program starts it again, and it registers anew.
	for {
		time.Sleep(500 * time.Millisecond)
		if now, err := identify(registrar); err != nil || now != generation {
			return errors.New("the kubelet was restarted")
		}
	}
}

func awaitSocket(path string, limit time.Duration) (identity, error) {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		connection, err := net.Dial("unix", path)
		if err == nil {
			connection.Close()
			return identify(path)
		}
		if time.Now().After(deadline) {
			return identity{}, err
		}
	}
}

// identity tells one socket from the next of the same name; the file system gives the number of a
// removed file to the next one, so the time is part of it.
type identity struct {
	inode   uint64
	changed syscall.Timespec
}

func identify(path string) (identity, error) {
	information, err := os.Stat(path)
	if err != nil {
		return identity{}, err
	}
	status := information.Sys().(*syscall.Stat_t)
	return identity{inode: status.Ino, changed: status.Ctim}, nil
}

func serve(ctx context.Context, directory, registrar, resource string, count int) error {
	name := "simulated-" + strings.NewReplacer("/", "-", ".", "-").Replace(resource) + ".sock"
	path := filepath.Join(directory, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	devices.RegisterDevicePluginServer(server, &plugin{resource: resource, count: count})
	go server.Serve(listener)

	connection, err := grpc.NewClient("unix://"+registrar, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = devices.NewRegistrationClient(connection).Register(ctx, &devices.RegisterRequest{
		Version: devices.Version, Endpoint: name, ResourceName: resource,
	})
	return err
}

type plugin struct {
	devices.UnimplementedDevicePluginServer
	resource string
	count    int
}

func (p *plugin) GetDevicePluginOptions(context.Context, *devices.Empty) (*devices.DevicePluginOptions, error) {
	return &devices.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *devices.Empty, stream grpc.ServerStreamingServer[devices.ListAndWatchResponse]) error {
	list := make([]*devices.Device, p.count)
	for i := range list {
		list[i] = &devices.Device{ID: strconv.Itoa(i), Health: devices.Healthy}
	}
	if err := stream.Send(&devices.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate tells the container which of the simulated devices are its own, for logs and tests.
func (p *plugin) Allocate(_ context.Context, request *devices.AllocateRequest) (*devices.AllocateResponse, error) {
	variable := "WEFT_SIMULATED_" + strings.ToUpper(strings.NewReplacer("/", "_", ".", "_", "-", "_").Replace(p.resource))
	response := &devices.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &devices.ContainerAllocateResponse{
			Envs: map[string]string{variable: strings.Join(container.DevicesIds, ",")},
		})
	}
	return response, nil
}
